"""Speed of a rank's data loader; fill of micro-batches and balance of ranks."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import DataConfig
from pipeline.data.batches import Batches
from pipeline.data.mixture import Mixture
from pipeline.data.planning import Plan


@dataclass(frozen=True)
class Load:
    """Whose batches are read: `lengths` are the maximum (source, target) lengths.

    Raises ValueError where micro-batches would be empty.
    """

    data: Path
    batch_size: int
    ranks: int
    accumulation: int
    lengths: tuple[int, int]

    def __post_init__(self) -> None:
        needed = self.ranks * self.accumulation
        if self.batch_size < needed:
            raise ValueError(
                f"--batch_size {self.batch_size} is less than {self.ranks} ranks x "
                f"{self.accumulation} micro-batches; give at least {needed}"
            )

    def of_rank(self, rank: int, folder: Path | None = None) -> Batches:
        """The batches of a rank, from `folder` instead of `data` if given.

        Raises ValueError as the trainer does.
        """
        mixture = Mixture(DataConfig(train=str(folder or self.data)))
        order = mixture.order(self.batch_size, seed=0)
        return Batches(mixture.datasets, order, rank, self.ranks, self.accumulation, *self.lengths)


def measure(load: Load, steps: int) -> dict[str, Any]:
    """Over `steps` batches: CPU seconds of one rank's loader, fill and load of all ranks.

    `samples_per_s`: samples that one rank's loader delivers per CPU second, without planning the
    steps. `source_fill`, `target_fill`: real tokens as a share of padded positions. `load`: mean
    over the steps of the function `balance`.
    """
    began = time.perf_counter()
    batches = load.of_rank(0)
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
        "data": str(load.data),
        "samples": len(batches.datasets[0]),
        "batch_size": load.batch_size,
        "ranks": load.ranks,
        "accumulation": load.accumulation,
        "steps": steps,
        "first_batch_s": opened,
        "cpu_s_per_step": cpu / steps,
        "samples_per_s": delivered / cpu,
        "source_fill": float(real[0] / padded[0]),
        "target_fill": float(real[1] / padded[1]),
        "load": float(np.mean([balance(plan, load.ranks) for plan in plans])),
    }


def balance(plan: Plan, ranks: int) -> float:
    """The mean rank's padded positions as a share of the costliest rank's.

    At each accumulation step all ranks wait for the costliest micro-batch.
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
        f"a rank's loader: {found['samples_per_s']:,.0f} samples per CPU second "
        f"({1e3 * found['cpu_s_per_step']:.1f} ms a step)"
    )
    yield (
        f"real tokens: {found['source_fill']:.1%} of source positions, "
        f"{found['target_fill']:.1%} of target positions"
    )
    yield f"load: the mean rank has {found['load']:.1%} of the costliest rank's positions"
