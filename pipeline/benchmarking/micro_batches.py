"""Micro-batches with the lengths of real data, recorded once and replayed where the data are not.

A record lists the micro-batches of one update for all processes, as the trainer cuts it, for each
accumulation. It holds lengths alone; ids are drawn at random.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pipeline.common.paths import ROOT

if TYPE_CHECKING:  # it reads shards, for which a GPU node may lack packages
    from pipeline.benchmarking.data_loading import Load

C4 = ROOT / "benchmarks" / "c4_micro_batches.json"
"""Made by `benchmark.py micro-batches` from a sample of C4."""
IGNORED, FIRST_ID = -100, 3
"""The label of padding; the first id that is neither padding, end nor unknown."""


class Inputs(NamedTuple):
    """A micro-batch on a device."""

    ids: Tensor
    """(B, L)."""
    mask: Tensor
    """(B, L), 1 at real positions."""
    labels: Tensor
    """(B, T), IGNORED at padding."""


@dataclass(frozen=True)
class Shape:
    """Padded lengths of a micro-batch, and the real (source, target) lengths of its rows."""

    source: int
    target: int
    rows: tuple[tuple[int, int], ...]

    @property
    def samples(self) -> int:
        """B."""
        return len(self.rows)

    def shrunk(self, divisor: int) -> "Shape":
        """The same with shorter rows, none below 2."""

        def shorter(length: int) -> int:
            return max(2, length // divisor)

        rows = tuple((shorter(source), shorter(target)) for source, target in self.rows)
        return Shape(shorter(self.source), shorter(self.target), rows)

    def shortened(self) -> "Shape":
        """The same with every row a token shorter, none below 2: shapes not seen before."""
        rows = tuple((max(2, source - 1), max(2, target - 1)) for source, target in self.rows)
        return Shape(max(2, self.source - 1), max(2, self.target - 1), rows)

    def inputs(self, vocab_size: int, device: torch.device) -> Inputs:
        """Random ids, with padding where the rows have it."""
        ends = torch.tensor(self.rows, device=device)
        mask, real = (
            torch.arange(length, device=device) < ends[:, side, None]
            for side, length in enumerate((self.source, self.target))
        )
        ids = torch.randint(FIRST_ID, vocab_size, mask.shape, device=device) * mask
        labels = torch.randint(FIRST_ID, vocab_size, real.shape, device=device)
        return Inputs(ids, mask.long(), labels.masked_fill(~real, IGNORED))


def fill(shapes: Sequence[Shape]) -> tuple[float, float]:
    """Shares of real tokens among the padded source and target positions."""
    real = [sum(row[side] for one in shapes for row in one.rows) for side in (0, 1)]
    padded = [
        sum(one.samples * length for one, length in zip(shapes, lengths, strict=True))
        for lengths in ([one.source for one in shapes], [one.target for one in shapes])
    ]
    return real[0] / padded[0], real[1] / padded[1]


def record(loads: Sequence["Load"]) -> dict[str, Any]:
    """The first update's micro-batches of loads that differ in accumulation; JSON types."""
    first = loads[0]
    return {
        "command": "micro-batches",
        "data": first.data.name,
        "batch_size": first.batch_size,
        "ranks": first.ranks,
        "lengths": list(first.lengths),
        "micro_batches": {str(load.accumulation): [*map(_as_json, cuts(load))] for load in loads},
    }


def cuts(load: "Load") -> Iterator[Shape]:
    """The micro-batches of all processes in a load's first update, costliest first."""
    plan = load.of_rank(0).plan(0)
    for part, (_, source, target) in zip(plan.parts, plan.shapes.tolist(), strict=True):
        yield Shape(source, target, tuple((s, t) for s, t in plan.lengths[part].tolist()))


def read(path: Path = C4) -> dict[int, list[Shape]]:
    """The micro-batches of a record by accumulation. Raises ValueError for another file."""
    try:
        lists = json.loads(path.read_bytes())["micro_batches"]
        return {int(key): [_from_json(one) for one in lists[key]] for key in lists}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a record of micro-batches ({type(error).__name__}: {error}); make one "
            "with `python pipeline/benchmark.py micro-batches --data DIR`"
        ) from error


def _as_json(shape: Shape) -> dict[str, str]:
    """Short texts, as sizes are written on the command line."""
    rows = " ".join(f"{source}x{target}" for source, target in shape.rows)
    return {"padded": f"{shape.samples}x{shape.source}x{shape.target}", "rows": rows}


def _from_json(found: dict[str, str]) -> Shape:
    samples, source, target = map(int, found["padded"].split("x"))
    rows = [tuple(map(int, row.split("x"))) for row in found["rows"].split()]
    longest = [max(side) for side in zip(*rows, strict=True)]
    if len(rows) != samples or not (longest[0] <= source and longest[1] <= target):
        raise ValueError(f"rows {found['rows']!r} in {found['padded']}")
    return Shape(source, target, tuple((s, t) for s, t in rows))
