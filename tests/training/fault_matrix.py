"""Trains with something wrong at a step, again and again in one process group.

    deepspeed fault_matrix.py OUTPUT train.py's arguments...

The product's code is as it ships: faults come in through hooks of torch and through signals. Each
training leaves a run folder OUTPUT/<case>, and OUTPUT/rankN.json tells how each ended, and which
of its updates changed a weight or the optimizer's state on that process.
"""

import hashlib
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path[:1] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).parent)]

import torch  # noqa: E402 (the root first)
from fault_injection import Fault, Faults  # noqa: E402

from pipeline.config import parse  # noqa: E402
from pipeline.data.batches import StepBatch  # noqa: E402
from pipeline.distributed import network_check, world  # noqa: E402
from pipeline.distributed.world import RunFailed  # noqa: E402
from pipeline.training.callbacks.recorder import Recorder  # noqa: E402
from pipeline.training.prepare import prepare  # noqa: E402
from pipeline.training.state import StepResult, TrainingState  # noqa: E402
from pipeline.training.trainer import train  # noqa: E402

CONFIGURATIONS = ("zero1", "zero2", "zero2_offload", "zero3")
STEPS, NAN_SAMPLE, NAN_GRADIENT, NAN_WEIGHT, SPIKE = 8, 3, 5, 4, 25  # steps count from 1
IN_A_ROW = 3
FULL_DISK = 5
STOPS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "file", "budget")
FAULTY_RANK = 1


@contextmanager
def hooked(handle: Any) -> Iterator[None]:
    yield
    handle.remove()


def nan_sample(state: TrainingState) -> Any:
    """The encoder's states of one sample become NaN."""
    return hooked(
        state.engine.module.encoder.register_forward_hook(
            lambda module, inputs, states: torch.cat([states[:1] * math.nan, states[1:]])
        )
    )


def nan_gradient(state: TrainingState) -> Any:
    """One element of one parameter's gradient becomes NaN; the loss is as ever."""

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[0] = math.nan
        return gradient

    return hooked(next(state.engine.module.decoder.parameters()).register_hook(spoil))


def nan_weight(state: TrainingState) -> Any:
    """A weight is NaN from here on."""
    parameter = next(state.engine.module.decoder.parameters())
    getattr(parameter, "ds_tensor", parameter).data.view(-1)[0] = math.nan
    return nullcontext()


def big_loss(state: TrainingState) -> Any:
    """The loss is fifty times what it should be."""
    return hooked(
        state.engine.module.register_forward_hook(
            lambda module, inputs, output: output._replace(loss=50 * output.loss)
        )
    )


def full_disk(state: TrainingState) -> Any:
    """Rank 0's metrics find no room from here on."""
    for recorder in state.callbacks:
        if isinstance(recorder, Recorder):
            recorder.file = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 (until the end)
    return nullcontext()


def sent(name: str) -> Fault:
    """A signal to this process."""

    def send(state: TrainingState) -> Any:
        os.kill(os.getpid(), signal.Signals[name])
        return nullcontext()

    return send


def state_digest(state: TrainingState) -> str:
    """Of every weight and optimizer state that this process holds."""
    digest = hashlib.sha256()
    tensors = [getattr(p, "ds_tensor", p) for p in state.engine.module.parameters()]
    for moments in state.engine.optimizer.optimizer.state.values():
        tensors += [value for value in moments.values() if torch.is_tensor(value)]
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


class Observed(Faults):
    """Faults, and which updates changed a weight or the optimizer's state on this rank."""

    def __init__(self, faults: dict[int, Fault]) -> None:
        super().__init__(faults)
        self.changed: dict[int, bool] = {}

    def before_update(self, state: TrainingState, batch: StepBatch) -> None:
        super().before_update(state, batch)
        self.before = state_digest(state)

    def after_update(self, state: TrainingState, result: StepResult) -> None:
        super().after_update(state, result)
        self.changed[state.step] = state_digest(state) != self.before


class Cases:
    """Trains into OUTPUT/<name> with `faults` at steps, in this process."""

    def __init__(self, output: Path, arguments: list[str]) -> None:
        self.output, self.arguments = output, arguments
        self.world = world.start()
        self.told: dict[str, Any] = {}

    def run(self, name: str, *more: str, zero: str = "zero1", **faults: Fault) -> None:
        """`faults` are named step<N>."""
        observed = Observed({int(step.removeprefix("step")): one for step, one in faults.items()})
        told: dict[str, Any] = {"changed": observed.changed}
        config, _ = parse(
            [
                *self.arguments,
                *("--deepspeed_config", f"ds_configs/{zero}.json"),
                *("--output", str(self.output / name.partition("/")[0]), *more),
            ]
        )
        try:
            told["status"] = train(config, prepare(config, self.world), self.world, [observed])
        except RunFailed as error:
            told["failed"] = str(error)
        self.told[name] = told

    def finish(self) -> None:
        """Write what was told of every case."""
        path = self.output / f"rank{self.world.rank}.json"
        path.write_text(json.dumps(self.told))
        world.stop()


def main(output: Path, arguments: list[str]) -> None:
    case = Cases(output, arguments)
    faulty = case.world.rank == FAULTY_RANK
    dropout = ("--model.dropout", "0.1", "--train.max_steps", str(STEPS))
    fp32 = ("--train.precision", "fp32", "--train.max_steps", str(STEPS))
    in_a_row = ("--train.max_skipped_updates", str(IN_A_ROW))
    spike = {f"step{SPIKE}": big_loss} if faulty else {}
    longer = ("--train.max_steps", str(SPIKE + 2))
    case.run("spike", *longer, **spike)
    case.run("spike-skipped", *longer, "--train.skip_spikes", "true", **spike)
    stop = {f"step{SPIKE - 2}": sent("SIGUSR1")} if faulty else {}
    case.run("spike-resumed/stopped", *longer, **stop)
    case.run("spike-resumed/finished", *longer, **spike)

    case.run("full-disk/failed", *dropout, **{f"step{FULL_DISK}": full_disk})
    case.run("full-disk/finished", *dropout)
    nodes = network_check.ring(case.world, ["one", "other"])
    case.told["links"] = {
        f"{link.source} {link.target}": link.gigabytes_per_second for link in nodes
    }
    case.told["one host"] = network_check.ring(case.world, ["one", "one"])

    for step, way in enumerate(STOPS[:4], start=2):
        fault = {f"step{step}": sent(way)} if faulty else {}
        case.run(f"stopped/{way}", *dropout, **fault)
    if not faulty:
        (output / "stopped" / "STOP").touch()
    case.run("stopped/file", *dropout)
    case.run("stopped/budget", *dropout, "--train.stop_after", "1s")
    case.run("stopped/finished", *dropout)

    # Last, and stage 3 last of them: it replaces torch's linear function in the whole process.
    for zero in CONFIGURATIONS:
        case.run(f"checked-{zero}", *dropout, zero=zero)
        case.run(f"unchecked-{zero}", *dropout, "--train.startup_check", "false", zero=zero)
        faults = {f"step{NAN_SAMPLE}": nan_sample, f"step{NAN_GRADIENT}": nan_gradient}
        case.run(f"skipped-{zero}", *fp32, zero=zero, **(faults if faulty else {}))
        case.run(f"weight-{zero}", *fp32, *in_a_row, zero=zero, **{f"step{NAN_WEIGHT}": nan_weight})
    case.finish()


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    main(Path(words[0]), words[1:])
