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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402 (the root first)

from pipeline import distributed  # noqa: E402
from pipeline.config import parse  # noqa: E402
from pipeline.training import links, trainer  # noqa: E402
from pipeline.training.health import RunFailed  # noqa: E402

CONFIGURATIONS = ("zero1", "zero2", "zero2_offload", "zero3")
STEPS, NAN_SAMPLE, NAN_GRADIENT, NAN_WEIGHT, SPIKE = 8, 3, 5, 4, 25  # steps count from 1
IN_A_ROW = 3
FULL_DISK = 5
STOPS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "file", "budget")
FAULTY_RANK = 1
Fault = Callable[[Any], Any]


@contextmanager
def hooked(handle: Any) -> Iterator[None]:
    yield
    handle.remove()


def nan_sample(engine: Any) -> Any:
    """The encoder's states of one sample become NaN."""
    return hooked(
        engine.module.encoder.register_forward_hook(
            lambda module, inputs, states: torch.cat([states[:1] * math.nan, states[1:]])
        )
    )


def nan_gradient(engine: Any) -> Any:
    """One element of one parameter's gradient becomes NaN; the loss is as ever."""

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[0] = math.nan
        return gradient

    return hooked(next(engine.module.decoder.parameters()).register_hook(spoil))


def nan_weight(engine: Any) -> Any:
    """A weight is NaN from here on."""
    parameter = next(engine.module.decoder.parameters())
    getattr(parameter, "ds_tensor", parameter).data.view(-1)[0] = math.nan
    return nullcontext()


def big_loss(engine: Any) -> Any:
    """The loss is fifty times what it should be."""
    return hooked(
        engine.module.register_forward_hook(
            lambda module, inputs, output: output._replace(loss=50 * output.loss)
        )
    )


def full_disk(engine: Any) -> Any:
    """Rank 0's metrics find no room from here on."""
    for metrics in Recorded.made:
        metrics.file = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 (until the end)
    return nullcontext()


class Recorded(trainer.Metrics):
    """Metrics that a fault can reach."""

    made: ClassVar[list["Recorded"]] = []

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made[:] = [self]


def sent(name: str) -> Fault:
    """A signal to this process."""

    def send(engine: Any) -> Any:
        os.kill(os.getpid(), signal.Signals[name])
        return nullcontext()

    return send


def state_digest(engine: Any) -> str:
    """Of every weight and optimizer state that this process holds."""
    digest = hashlib.sha256()
    tensors = [getattr(p, "ds_tensor", p) for p in engine.module.parameters()]
    for state in engine.optimizer.optimizer.state.values():
        tensors += [value for value in state.values() if torch.is_tensor(value)]
    for tensor in tensors:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


class Case:
    """Trains into OUTPUT/<name> with `faults` at steps, in this process."""

    def __init__(self, output: Path, arguments: list[str]) -> None:
        self.output, self.arguments = output, arguments
        self.world = distributed.start()
        self.told: dict[str, Any] = {}
        self.step, self.faults, self.changed = 0, {}, {}
        self.seed_dropout, self.update = trainer.seed_dropout, trainer.update
        trainer.seed_dropout, trainer.update = self._seed_dropout, self._update
        trainer.Metrics = Recorded  # type: ignore[misc]

    def run(self, name: str, *more: str, zero: str = "zero1", **faults: Fault) -> None:
        """`faults` are named step<N>."""
        self.step, self.changed = 0, {}
        self.faults = {int(step.removeprefix("step")): fault for step, fault in faults.items()}
        told: dict[str, Any] = {"changed": self.changed}
        config, _ = parse(
            [
                *self.arguments,
                *("--deepspeed_config", f"ds_configs/{zero}.json"),
                *("--output", str(self.output / name.partition("/")[0]), *more),
            ]
        )
        try:
            told["status"] = trainer.train(config, trainer.prepare(config, self.world), self.world)
        except RunFailed as error:
            told["failed"] = str(error)
        self.told[name] = told

    def finish(self) -> None:
        """Write what was told of every case."""
        path = self.output / f"rank{self.world.rank}.json"
        path.write_text(json.dumps(self.told))
        distributed.stop()

    def _seed_dropout(self, seed: int, step: int, rank: int) -> None:
        self.step = step + 1
        self.seed_dropout(seed, step, rank)

    def _update(self, engine: Any, *arguments: Any) -> Any:
        fault = self.faults.get(self.step)
        with fault(engine) if fault else nullcontext():
            before = state_digest(engine)
            verdict = self.update(engine, *arguments)
        if self.step:  # the start-up check's updates are none of the run
            self.changed[self.step] = state_digest(engine) != before
        return verdict


def main(output: Path, arguments: list[str]) -> None:
    case = Case(output, arguments)
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
    nodes = links.ring(case.world, ["one", "other"])
    case.told["links"] = {
        f"{link.source} {link.target}": link.gigabytes_per_second for link in nodes
    }
    case.told["one host"] = links.ring(case.world, ["one", "one"])

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
