"""What a record of systems says: LOCOST against each other system, by the rounds that they share.

A figure in a table is the median of its runs. LOCOST is called faster or leaner, and a target met,
only if every round says so: a ratio is of two runs of one round, and the least and the most of the
ratios decide. Where rounds disagree the difference is within the spread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pipeline.benchmarking.cases import Memory, Mode, Row

OURS = "locost"
ENOUGH_ROUNDS = 3
Figure = Literal["memory", "wall time", "CPU time"]
FIELDS: dict[Figure, str] = {"memory": "peak_gib", "wall time": "wall_s", "CPU time": "cpu_s"}
Verdict = Literal["loses", "within the spread", "too few rounds", "wins"]


@dataclass(frozen=True)
class Ratio:
    """LOCOST's figure over another system's: below 1 LOCOST is leaner or faster."""

    system: str
    mode: Mode
    memory: Memory
    length: int
    figure: Figure
    rounds: tuple[float, ...]
    """The ratio of the two runs of each shared round; empty where one of the systems has none."""
    median: float
    """The ratio of the medians; 0 where only LOCOST ran, infinity where only the other did."""
    reason: str = ""
    """Why one of them has no figure."""
    apart: int = 0
    """Rounds whose two runs were made by different calls of the command."""

    @property
    def verdict(self) -> Verdict:
        """By the rule above."""
        if self.reason:
            return "wins" if self.median < 1 else "loses"
        if len(self.rounds) < ENOUGH_ROUNDS:
            return "too few rounds"
        if max(self.rounds) < 1:
            return "wins"
        return "loses" if min(self.rounds) > 1 else "within the spread"


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Of every system at every mode, memory setting and length that LOCOST was measured at too.

    Where neither ran there is nothing to compare.
    """
    ours = {_circumstances(row): row for row in rows if row["subject"] == OURS}
    return [
        ratio
        for row in rows
        if row["subject"] != OURS and _circumstances(row) in ours
        for ratio in _compared(ours[_circumstances(row)], row)
    ]


def _compared(our: Row, other: Row) -> Iterator[Ratio]:
    if "as" in our and "as" in other:  # the comparison stands there already
        return
    place = {"system": other["subject"], **{n: other[n] for n in ("mode", "memory", "length")}}
    if "cross" in our and "cross" in other:
        return
    for figure, field in FIELDS.items():
        if "cross" in our:
            yield Ratio(**place, figure=figure, rounds=(), median=float("inf"), reason=our["cross"])
        elif "cross" in other:
            yield Ratio(**place, figure=figure, rounds=(), median=0.0, reason=other["cross"])
        else:
            pairs = _pairs(our, other)
            yield Ratio(
                **place, figure=figure, rounds=tuple(a[field] / b[field] for a, b in pairs),
                median=our[field] / other[field],
                apart=sum(a["sitting"] != b["sitting"] for a, b in pairs),
            )  # fmt: skip


def _pairs(our: Row, other: Row) -> list[tuple[Row, Row]]:
    """The runs of the rounds that both made, on one machine."""
    theirs = {(run["round"], run["machine"]): run for run in other["runs"]}
    both = [(run, theirs.get((run["round"], run["machine"]))) for run in our["runs"]]
    return [(run, their) for run, their in both if their]


@dataclass(frozen=True)
class Target:
    """The project's target for LOCOST against a system, both plain or both saving."""

    system: str
    mode: Mode
    length: int
    figure: Figure
    most: float
    """LOCOST's figure over the other's is at most this."""
    words: str


def _throughput(mode: Mode, length: int, times: float) -> Iterator[Target]:
    """Samples a second, by either clock, at least `times` the other's."""
    for figure in ("wall time", "CPU time"):
        yield Target(
            "longt5-tglobal", mode, length, figure, 1 / times, f"at least {times} times as fast"
        )


TARGETS = (
    Target("longt5-tglobal", "training", 4096, "memory", 0.45, "at most 0.45 of it"),
    Target("led", "training", 16384, "memory", 1.0, "at most as much"),
    Target("longt5-tglobal", "inference", 16384, "memory", 0.20, "at most 0.20 of it"),
    *(
        target
        for length, times in ((4096, 1.3), (16384, 1.6))
        for mode in get_args(Mode)
        for target in _throughput(mode, length, times)
    ),
)


def targets(found: Sequence[Ratio]) -> Iterator[tuple[Target, Ratio, str]]:
    """The targets whose two sides were measured, with the ratio, and whether it is met."""
    for target in TARGETS:
        for ratio in found:
            place = (ratio.system, ratio.mode, ratio.length, ratio.figure)
            if place == (target.system, target.mode, target.length, target.figure):
                yield target, ratio, _outcome(target, ratio)


def _outcome(target: Target, ratio: Ratio) -> str:
    """Met, missed, or neither: by the rule of `Ratio.verdict`, with the target's bound."""
    if ratio.reason:
        return "met" if ratio.median < 1 else "missed"
    if len(ratio.rounds) < ENOUGH_ROUNDS:
        return "too few rounds"
    if max(ratio.rounds) <= target.most:
        return "met"
    return "missed" if min(ratio.rounds) > target.most else "within the spread"


def longest(rows: Sequence[Row]) -> dict[tuple[str, Mode, Memory], tuple[int, int | None]]:
    """By system, mode and memory setting: the longest length that ran (0: none), the first that
    failed."""
    found: dict[tuple[str, Mode, Memory], tuple[int, int | None]] = {}
    for row in sorted(rows, key=lambda row: row["length"]):
        key = (row["subject"], row["mode"], row["memory"])
        fits, fails = found.get(key, (0, None))
        if "cross" not in row:
            fits = row["length"]
        elif fails is None:
            fails = row["length"]
        found[key] = fits, fails
    return found


def _circumstances(row: Row) -> tuple[Any, ...]:
    return row["mode"], row["memory"], row["length"]
