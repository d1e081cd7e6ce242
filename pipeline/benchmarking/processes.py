"""Efficiency of data parallel training on CPUs, against independent single-process trainings.

Each is the trainer itself, on the same shards; a single process takes its share of the batch. Both
are timed in one run.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.common.paths import ROOT
from pipeline.stages.commands import deepspeed_command
from pipeline.stages.stage_runner import two_core_environment

WARMUP = 10  # steps not counted
PARTS = ("forward", "backward", "optimizer")
SPIN = "while True: pass"


def measure(
    data: Path, recipe: Path, batch_size: int, processes: int, steps: int, busy: int
) -> dict[str, Any]:
    """Time steps of `batch_size` by `processes` together, then by as many single ones at once.

    `busy` other programs compete for the cores. `efficiency`: samples a second together as a share
    of samples a second alone. Raises ValueError where a training fails.
    """
    if batch_size % processes or steps < 1:
        raise ValueError(
            f"--batch_size {batch_size}, --processes {processes}, --steps {steps}: give a batch "
            "that divides among the processes, and at least one step"
        )
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(busy)]
    try:
        with TemporaryDirectory() as folder:
            common = [*_recipe(recipe, data), "--train.max_steps", str(WARMUP + steps)]
            together = _train([Path(folder) / "together"], common, batch_size, processes)
            alone = _train(
                [Path(folder) / f"alone-{rank}" for rank in range(processes)],
                common, batch_size // processes, 1,
            )  # fmt: skip
    finally:
        for other in others:
            other.kill()
            other.wait()
    return {
        "batch_size": batch_size,
        "processes": processes,
        "steps": steps,
        "busy": busy,
        "together": together,
        "alone": alone,
        "efficiency": alone["seconds"] / together["seconds"],
    }


def _recipe(recipe: Path, data: Path) -> list[str]:
    return [
        "--config", str(recipe), "--deepspeed_config", str(ROOT / "ds_configs" / "zero1.json"),
        "--data.train", str(data), "--train.startup_check", "false", "--train.accumulation", "1",
        "--train.checkpoint_every", "1000000", "--train.picture_every", "0",
        "--train.validation_source_use", "false", "--train.validation_rouge", "false",
    ]  # fmt: skip


def _train(
    runs: Sequence[Path], options: Sequence[str], batch_size: int, processes: int
) -> dict[str, float]:
    """Concurrent trainings: median seconds of a step and of its parts, over all of them."""
    started = [
        subprocess.Popen(
            deepspeed_command(
                "train.py",
                [*options, "--output", run, "--train.batch_size", batch_size],
                processes,
            ),
            env=two_core_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for run in runs
    ]
    try:
        printed = [process.communicate()[0] for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    for process, text in zip(started, printed, strict=True):
        if process.returncode:
            last = (text.strip().splitlines() or ["no output"])[-1]
            raise ValueError(f"a training ended with status {process.returncode}: {last}")
    lines = [
        json.loads(line)
        for run in runs
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    counted = [line for line in lines if line["step"] > WARMUP and "loss" in line]
    return {
        name: median(line[name] for line in counted)
        for name in ("seconds", *(f"{part}_seconds" for part in PARTS))
    }


def as_text(found: dict[str, Any]) -> Iterator[str]:
    """The lines that are printed."""
    count, batch_size = found["processes"], found["batch_size"]
    for name in ("together", "alone"):
        times = found[name]
        parts = ", ".join(f"{kind} {1e3 * times[f'{kind}_seconds']:.0f}" for kind in PARTS)
        yield (
            f"{count} processes {name}, {batch_size // count} samples each: "
            f"{1e3 * times['seconds']:.0f} ms a step ({parts}), "
            f"{batch_size / times['seconds']:.0f} samples/s in total"
        )
    yield f"efficiency {found['efficiency']:.2f}; busy programs: {found['busy']}"
