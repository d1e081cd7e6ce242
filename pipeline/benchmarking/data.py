"""How fast a process prepares its share of each batch, and how full and even the shares are."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import DataConfig
from pipeline.data.batches import Batches, Plan
from pipeline.data.mixture import Mixture


def measure(
    data: Path, batch_size: int, ranks: int, accumulation: int, steps: int, lengths: tuple[int, int]
) -> dict[str, Any]:
    """Of `steps` batches: CPU seconds of one process, and the fill and evenness of all.

    `lengths` are the longest (source, target). `samples_per_s`: samples that one process's loader
    delivers a CPU second, all its work counted, that of a first pass over the steps left out.
    `source_fill`, `target_fill`: real tokens among padded positions. `load`: the mean rank's padded
    positions as a share of the costliest rank's, the mean over the steps. Raises ValueError as the
    trainer does.
    """
    _check(batch_size, ranks, accumulation)
    began = time.perf_counter()
    mixture = Mixture(DataConfig(train=str(data)))
    order = mixture.order(batch_size, seed=0)
    batches = Batches(mixture.datasets, order, 0, ranks, accumulation, *lengths)
    batches.step(0)
    opened = time.perf_counter() - began
    plans = [batches.plan(step) for step in range(steps)]
    cpu, delivered = time.process_time(), 0
    for step in range(steps):
        delivered += sum(len(one.labels) for one in batches.step(step).micro_batches)
    cpu = time.process_time() - cpu
    real = sum(plan.lengths.sum(axis=0) for plan in plans)
    padded = sum(plan.shapes[:, 0] @ plan.shapes[:, 1:] for plan in plans)
    return {
        "data": str(data),
        "samples": len(mixture),
        "batch_size": batch_size,
        "ranks": ranks,
        "accumulation": accumulation,
        "steps": steps,
        "first_batch_s": opened,
        "cpu_s_per_step": cpu / steps,
        "samples_per_s": delivered / cpu,
        "source_fill": float(real[0] / padded[0]),
        "target_fill": float(real[1] / padded[1]),
        "load": float(np.mean([load(plan, ranks) for plan in plans])),
    }


def load(plan: Plan, ranks: int) -> float:
    """The mean rank's padded positions as a share of the costliest rank's.

    At each accumulation step all wait for the costliest micro-batch.
    """
    costs = (plan.shapes[:, 0] * plan.shapes[:, 1:].sum(axis=1)).reshape(-1, ranks)
    return float(costs.mean() / costs.max(axis=1).mean())


def as_text(found: dict[str, Any]) -> Iterator[str]:
    """The lines that are printed."""
    yield (
        f"{found['samples']:,} samples; batches of {found['batch_size']} for "
        f"{found['ranks']} ranks x {found['accumulation']} micro-batches; "
        f"{found['steps']} steps, one core"
    )
    yield f"first batch after {found['first_batch_s']:.2f} s"
    yield (
        f"a rank's loader: {found['samples_per_s']:,.0f} samples a CPU second "
        f"({1e3 * found['cpu_s_per_step']:.1f} ms a step)"
    )
    yield (
        f"real tokens: {found['source_fill']:.1%} of source positions, "
        f"{found['target_fill']:.1%} of target positions"
    )
    yield f"load: the mean rank has {found['load']:.1%} of the costliest rank's positions"


def _check(batch_size: int, ranks: int, accumulation: int) -> None:
    if batch_size < ranks * accumulation:
        raise ValueError(
            f"--batch_size {batch_size} is less than {ranks} ranks x {accumulation} micro-batches; "
            f"give at least {ranks * accumulation}"
        )
