"""The GPU check's training section: the trainer itself, on samples of C4's lengths.

Needs DeepSpeed and what reads and writes shards. First a run by the `deepspeed` command as users
start it: its losses and its speed. Then, under each ZeRO stage, a run that is stopped and resumed
against one that is not, with torch's deterministic algorithms: flash attention's backward pass adds
in no fixed order otherwise.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pipeline.benchmarking.gpu_rows import Row, base, first_line
from pipeline.benchmarking.micro_batches import read
from pipeline.common.command_line import RESUME_LATER
from pipeline.common.files import read_object
from pipeline.common.gpus import GPUS
from pipeline.common.paths import ROOT
from pipeline.distributed.device import device_name
from pipeline.distributed.world import free_port
from pipeline.model import LocostConfig

NEEDED = ("deepspeed", "msgpack", "sentencepiece", "jsonargparse", "tensorboard")
"""What training imports beyond the rest of the check."""
STAGES = (1, 3, 2)
"""In order of importance: ZeRO 3 differs most from the recipe's ZeRO 1; at toy sizes it alone."""
STEPS, STOPPED_STEPS = 6, 4
"""Of the first run, and of those that are compared."""
SHARE = 8
"""Those that are compared have this part of the first run's samples and micro-batches."""
WARM_UP = 2
"""Steps that are not timed."""
TIMEOUT = 150.0
"""Seconds of one run, its start and what it compiles included."""
LOSS_TOLERANCE = 2e-2
"""Relative, of losses in bf16 against fp32."""
TRAIN = str(ROOT / "pipeline" / "train.py")
FIRST, CHOICES = "first", "choices.json"
REFERENCES = {"attention": "sdpa", "kernel_build": "torch", "fft": "rows", "blocks": "eager"}
"""The choices that a run makes by timing, and what is taken where none was made."""
DETERMINISTIC = (
    "import os; os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'; "
    "import runpy, torch; torch.use_deterministic_algorithms(True); "
    "runpy.run_module('pipeline.train', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class Setup:
    """What the runs share."""

    device: torch.device
    model: LocostConfig
    data: Path
    runs: Path
    batch_size: int
    accumulation: int

    def settings(self, stage: int, share: int = 1) -> list[str]:
        """Those of an update like the recipe's, or a part of one; without pictures."""
        sizes = [
            word
            for name in ("d_model", "state_dim", "d_ff", "encoder_layers", "decoder_layers",
                         "num_heads", "head_dim")
            for word in (f"--model.{name}", str(asdict(self.model)[name]))
        ]  # fmt: skip
        return [
            "--config", "pretrain_c4.yaml", *sizes,
            "--deepspeed_config", f"ds_configs/zero{stage}.json",
            "--data.train", str(self.data), "--train.batch_size",
            str(self.batch_size // share), "--train.accumulation",
            str(max(1, self.accumulation // share)), "--train.picture_every", "0",
            "--train.checkpoint_every", "1000000", "--train.keep_checkpoints", "1",
        ]  # fmt: skip

    def arguments(self, run: Path, stage: int, steps: int, share: int = 1) -> list[str]:
        """Those of train.py."""
        return [*self.settings(stage, share), "--output", str(run), "--train.max_steps", str(steps)]

    def environment(self) -> dict[str, str]:
        """That of this process, without its GPUs where a CPU is checked."""
        more = {}
        if self.device.type == "cpu":
            more = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, **more, "PYTHONPATH": path}


def training(device: torch.device, small: bool) -> Iterator[Row]:
    """Losses, speed beside the estimate's, stop and resume; one process, ZeRO 1 to 3, bf16."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        yield {"trains": "DeepSpeed", "not run": f"cannot import {', '.join(missing)}; carry their "
               "wheels: docs/benchmarks.md"}  # fmt: skip
        return
    from pipeline.benchmarking import training_data  # needs them

    model = base(small)
    shapes = read()[1]
    if small:
        shapes = [shape.shrunk(32) for shape in shapes[:4]]
    with TemporaryDirectory() as folder:
        setup = Setup(
            device, model, Path(folder) / "shards", Path(folder),
            sum(shape.samples for shape in shapes), len(shapes),
        )  # fmt: skip
        training_data.write(setup.data, shapes, model.vocab_size, copies=2)
        yield from unless_it_raises("by deepspeed", first_run(setup))
        exact = True
        for stage in (3,) if small else STAGES:
            name = f"ZeRO {stage}, {'deterministic' if exact else 'by default'}"
            failed = yield from unless_it_raises(name, stop_and_resume(setup, stage, exact))
            exact = exact and not failed  # an operator without such an algorithm, perhaps


def unless_it_raises(name: str, rows: Iterator[Row]) -> Generator[Row, None, bool]:
    """The rows, and one that failed in place of those that an error prevents; whether it did."""
    try:
        yield from rows
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        yield {"trains": name, "raised": first_line(error), "passed": False}
        return True
    return False


def first_run(setup: Setup) -> Iterator[Row]:
    """By DeepSpeed's launcher: samples a second, the estimate's, and the first loss against the
    model's own."""
    run = setup.runs / FIRST
    arguments = setup.arguments(run, 1, STEPS)
    launcher = [
        sys.executable, "-m", "deepspeed.launcher.runner", "-q", "--num_accelerators", "1",
        "--master_port", str(free_port()),
    ]  # fmt: skip
    with started([*launcher, TRAIN, *arguments], setup) as process:
        printed = finished(process, 0)
    found, times = losses(run), [line["seconds"] for line in metrics(run)]
    speed = setup.batch_size / median(times[WARM_UP:])
    yield {
        "trains": "ZeRO 1", "steps": len(found), "samples": setup.batch_size,
        "micro_batches": setup.accumulation, "step_ms": 1000 * setup.batch_size / speed,
        "samples_per_s": speed, "first_loss": found[0], "last_loss": found[-1],
        **{name: said(printed, name) for name in REFERENCES},
        "passed": all(map(math.isfinite, found)),
    }  # fmt: skip
    yield from first_losses(arguments, found[0], setup.device)
    yield {"samples_per_s": speed, **estimated(setup)}


def said(printed: str, name: str) -> str | None:
    """What a run printed of one of its choices."""
    lines = (line.partition(": ") for line in printed.splitlines())
    return next((reason for start, _, reason in lines if start == name), None)


def first_losses(arguments: Sequence[str], loss: float, device: torch.device) -> Iterator[Row]:
    """A run's first loss against the model's own, and that of a few rows against the CPU's."""
    from pipeline.benchmarking import training_data
    from pipeline.config import parse

    config, _ = parse([*arguments])
    expected = training_data.first_losses(config, device)
    for name, ours, reference in (
        ("of the first update", loss, expected.update),
        ("of four rows, beside a CPU's", expected.rows, expected.rows_on_cpu),
    ):
        error = abs(ours - reference) / abs(reference)
        yield {
            "loss": name, "ours": ours, "expected": reference, "error": error,
            "tolerance": LOSS_TOLERANCE, "passed": error <= LOSS_TOLERANCE,
        }  # fmt: skip


def stop_and_resume(setup: Setup, stage: int, exact: bool) -> Iterator[Row]:
    """Whether a run stopped by SIGTERM and resumed has the losses of one that was not stopped.

    `exact`: with torch's deterministic algorithms, and bit for bit; else to LOSS_TOLERANCE.
    """
    whole, broken = (setup.runs / f"{name}-{stage}-{exact}" for name in ("whole", "broken"))
    chosen = choices(setup.runs / FIRST)

    def command(run: Path) -> list[str]:
        arguments = [*setup.arguments(run, stage, STOPPED_STEPS, SHARE), *chosen]
        program = ["-c", DETERMINISTIC] if exact else [TRAIN]
        return [sys.executable, *program, *arguments]

    with started(command(whole), setup) as one, started(command(broken), setup) as other:
        stop_when_it_trains(other, broken)
        finished(other, RESUME_LATER)
        finished(one, 0)
    stopped_after = len(metrics(broken))
    with started(command(broken), setup) as again:
        finished(again, 0)
    expected, ours = losses(whole), losses(broken)
    for run in (whole, broken):  # gigabytes
        shutil.rmtree(run)
    yield {"trains": f"ZeRO {stage}, stopped and resumed", "deterministic": exact,
           **compared(ours, expected, stopped_after, exact)}  # fmt: skip


def compared(
    ours: Sequence[float], expected: Sequence[float], stopped_after: int, exact: bool
) -> Row:
    """Losses of every step: of a run stopped after some step, and of one that was not."""
    alike, finite = len(ours) == len(expected), all(map(math.isfinite, [*ours, *expected]))
    error, same = math.nan, finite and ours == expected
    if alike and finite:
        error = max(abs(x - y) / abs(y) for x, y in zip(ours, expected, strict=True))
    stopped = 0 < stopped_after < len(expected)
    return {
        "stopped_after": stopped_after, "steps": len(ours), "last_loss": ours[-1],
        "bit_for_bit": same, "error": error,
        "passed": stopped and (same if exact else error <= LOSS_TOLERANCE),
    }  # fmt: skip


def choices(first: Path) -> list[str]:
    """What the first run chose by timing, as settings: two runs that choose may differ.

    Blocks are not compiled, which would take each run longer than its updates.
    """
    kept = read_object(first / CHOICES)
    found = {name: kept.get(name, {}).get("chosen", plain) for name, plain in REFERENCES.items()}
    found["blocks"] = REFERENCES["blocks"]
    return [word for name, value in found.items() for word in (f"--train.{name}", value)]


@contextmanager
def started(command: Sequence[str], setup: Setup) -> Iterator[subprocess.Popen[str]]:
    """A process of a group of its own, whose members do not outlive the context."""
    process = subprocess.Popen(
        command, env=setup.environment(), cwd=setup.runs, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stop_when_it_trains(process: subprocess.Popen[str], run: Path) -> None:
    """SIGTERM once the run records, so that it stops after its next step."""
    deadline = time.monotonic() + TIMEOUT
    while not (run / "metrics.jsonl").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    process.terminate()


def finished(process: subprocess.Popen[str], status: int) -> str:
    """What a process printed, once it has ended. Raises RuntimeError for another status."""
    text, _ = process.communicate(timeout=TIMEOUT)
    if process.returncode != status:
        last = "; ".join(text.strip().splitlines()[-3:])
        raise RuntimeError(f"status {process.returncode}, expected {status}: {last}")
    return text


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, one a step."""
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def losses(run: Path) -> list[float]:
    """The loss of every step; NaN where it was not finite, for which the file has null."""
    return [math.nan if line["loss"] is None else line["loss"] for line in metrics(run)]


def estimated(setup: Setup) -> Row:
    """The samples a second that `estimate.py` gives for this card; for an H100 where it knows none
    of its name. Raises RuntimeError where it gives none."""
    name = device_name(setup.device)
    gpu = next((key for key in GPUS if key.upper() in name), "h100")
    output = setup.runs / "estimate.json"
    command = [
        sys.executable, str(ROOT / "pipeline" / "estimate.py"), "--gpus", "1", "--gpu", gpu,
        "--data", str(setup.data), "--output", str(output),
    ]  # fmt: skip
    sizes = [word for word in setup.settings(1) if word not in ("--data.train", str(setup.data))]
    with started([*command, *sizes], setup) as process:
        printed = finished(process, 0)
    try:
        seconds = read_object(output)["columns"][0]["step_seconds"]
    except (LookupError, TypeError) as error:
        raise RuntimeError(f"estimate.py gives no step_seconds: {printed}") from error
    return {"estimated_samples_per_s": setup.batch_size / seconds, "estimated_for": gpu}
