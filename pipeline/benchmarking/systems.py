"""Comparison of LOCOST with other whole systems: memory, time, and the longest input that fits.

As in the paper's table of samples a second and its figure of memory against length.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch

from pipeline.benchmarking.cases import Case, Memory, Mode, Row
from pipeline.benchmarking.sweep import measure_all, measure_apart, time_field
from pipeline.common.files import replace_json
from pipeline.model.encoder import TOKEN_BLOCK

OURS = "locost"


@dataclass(frozen=True)
class Target:
    """The project's target for LOCOST against a system, both plain or both saving."""

    system: str
    mode: Mode
    length: int
    figure: Literal["memory", "throughput"]
    """LOCOST's memory over the other's is at most `ratio`; its throughput at least."""
    ratio: float


TARGETS = (
    Target("longt5-tglobal", "training", 4096, "memory", 0.45),
    Target("led", "training", 16384, "memory", 1.0),
    Target("longt5-tglobal", "inference", 16384, "memory", 0.20),
    *(
        Target("longt5-tglobal", mode, length, "throughput", ratio)
        for length, ratio in ((4096, 1.3), (16384, 1.6))
        for mode in get_args(Mode)
    ),
)


def run(options: argparse.Namespace, device: torch.device, memory_bytes: int | None) -> None:
    """Measure; print table, longest inputs and ratios; write systems.json and systems.png."""
    written, figure = (options.output / f"systems.{kind}" for kind in ("json", "png"))

    def measure(case: Case, before: Sequence[Row]) -> Row:
        return known(case, before) or measure_apart(case, options.limit_s, memory_bytes)

    results = measure_all("systems", cases(options), device, written, measure)
    rows = results["rows"]
    results["longest"] = longest(rows)
    results["ratios"] = ratios(rows, time_field(device))
    results["targets"] = [
        {**asdict(target), "memory": memory, "found": found}
        for target, memory, found in targets(results["ratios"])
    ]
    replace_json(written, results)
    for line in as_text(results):
        print(line)
    # These need more than a GPU node may have.
    from pipeline.reporting.measurements import Measurements
    from pipeline.reporting.paper.figures import plot_memory

    plot_memory(Measurements(results["device"], rows), figure)
    print(f"{written}, {figure}")


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """By system, mode and memory setting, shortest lengths first."""
    modes: Sequence[Mode] = get_args(Mode) if options.mode == "both" else (options.mode,)
    for system in options.systems:
        for mode in modes:
            for memory in get_args(Memory):
                for length in sorted(options.lengths):
                    yield Case(
                        subject=system, mode=mode, memory=memory, length=length,
                        tokens=options.tokens, batch=options.batch, dtype=options.dtype,
                        device=options.device, threads=options.threads,
                        model=options.settings.get(system, {}),
                    )  # fmt: skip


def known(case: Case, before: Sequence[Row]) -> Row | None:
    """The case's row where the rows before it already give it; None where it must be run.

    A failure at a shorter length would repeat; and without gradients the only memory saving is
    LOCOST's blocks of tokens, in long inputs.
    """
    for row in before:
        same = (row["subject"], row["mode"]) == (case.subject, case.mode)
        if same and row["memory"] == case.memory and row["length"] < case.length:
            if "cross" in row:
                length = row.get("stopped_at", row["length"])
                cross = f"{row['cross'].split(' (at ')[0]} (at {length})"
                return {**asdict(case), "cross": cross, "stopped_at": length}
        elif same and case.mode == "inference" and row["length"] == case.length:
            blocks = case.subject == OURS and case.length > TOKEN_BLOCK
            if (row["memory"], case.memory) == ("plain", "saving") and not blocks:
                return {**row, "memory": "saving", "as": "plain"}
    return None


def longest(rows: Sequence[Row]) -> dict[str, dict[str, int | None]]:
    """By system, mode and memory setting: the longest length that ran, the first that failed."""
    found: dict[str, dict[str, int | None]] = {}
    for row in rows:
        entry = found.setdefault(_name(row), {"fits": None, "fails": None})
        if "cross" not in row:
            entry["fits"] = max(row["length"], entry["fits"] or 0)
        elif entry["fails"] is None:
            entry["fails"] = row["length"]
    return found


def ratios(rows: Sequence[Row], time: str) -> list[Row]:
    """LOCOST's memory and throughput over each other system's, at equal mode, memory and length."""
    ours = {_circumstances(row): row for row in rows if row["subject"] == OURS and time in row}
    return [
        {
            "system": row["subject"],
            **{name: row[name] for name in ("mode", "memory", "length")},
            "memory_ratio": ours[_circumstances(row)]["peak_gib"] / row["peak_gib"],
            "throughput_ratio": row[time] / ours[_circumstances(row)][time],
        }
        for row in rows
        if row["subject"] != OURS and time in row and _circumstances(row) in ours
    ]


def targets(found: Sequence[Row]) -> Iterator[tuple[Target, Memory, float]]:
    """The targets whose two sides were measured, with the ratio found."""
    for target in TARGETS:
        for row in found:
            key = (row["system"], row["mode"], row["length"])
            if key == (target.system, target.mode, target.length):
                yield target, row["memory"], row[f"{target.figure}_ratio"]


def as_text(results: dict[str, Any]) -> Iterator[str]:
    """The printed summary: weights, longest inputs, ratios, targets."""
    yield ""
    weights = {
        row["subject"]: row["weights_gib"] for row in results["rows"] if "weights_gib" in row
    }
    yield "weights, not counted in the peak: " + ", ".join(
        f"{system} {size:.2f} GiB" for system, size in weights.items()
    )
    yield "longest input that ran, of the lengths tried:"
    for name, entry in results["longest"].items():
        fails = f", not {entry['fails']:,}" if entry["fails"] else ""
        yield f"  {name:40}{entry['fits'] or 0:>9,}{fails}"
    yield "LOCOST over each system (memory: lower is better; throughput: higher):"
    for row in results["ratios"]:
        loses = row["memory_ratio"] > 1, row["throughput_ratio"] < 1
        marks = [name for name, lost in zip(("memory", "throughput"), loses, strict=True) if lost]
        start = f"  {row['system']}, {row['mode']}, {row['memory']}"
        yield f"{start:42}{row['length']:>9,}  memory {row['memory_ratio']:.2f}  throughput " + (
            f"{row['throughput_ratio']:.2f}" + (f"  loses in {', '.join(marks)}" if marks else "")
        )
    for target in results["targets"]:
        least = target["figure"] == "throughput"
        met = target["found"] >= target["ratio"] if least else target["found"] <= target["ratio"]
        yield (
            f"target {'met' if met else 'MISSED'}: {target['figure']} against {target['system']}, "
            f"{target['mode']} at {target['length']:,}, {target['memory']}: {target['found']:.2f}, "
            f"{'at least' if least else 'at most'} {target['ratio']:.2f}"
        )


def _name(row: Row) -> str:
    return f"{row['subject']}, {row['mode']}, {row['memory']}"


def _circumstances(row: Row) -> tuple[Any, ...]:
    return row["mode"], row["memory"], row["length"]
