"""The paper's tables of complexity, throughput and memory, with ours below."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.common.html import escape
from pipeline.common.power_law import fit_exponent
from pipeline.reporting.measurements import MEMORIES, MODES, Measurements, extremes, figure
from pipeline.reporting.paper.comparison_table import Cells, Spread, Table, Value, figure_of
from pipeline.reporting.paper.inputs import PaperInputs, system_title
from pipeline.reporting.paper.published import LOCOST, LONGT5, OUT_OF_MEMORY, paper

ONE, TWO, DIGITS = ".1f", ".2f", ".3g"
LENGTHS = {4096: "4K", 16384: "16K"}
OWN = "kernel, precision, recomputation"
MEASURE = "--systems FILE of benchmark.py systems"


def complexity(inputs: PaperInputs) -> Iterator[str]:
    """The published law of each layer, and the measured exponents of whole systems."""
    measured = inputs.measurements
    time, memory = ([f"{kind}, {mode}" for mode in MODES] for kind in ("time", "memory"))
    columns = {"law": "", "law's exponent": TWO, **dict.fromkeys((*time, *memory), TWO), OWN: ""}
    systems = _in_order(paper().complexity, dict.fromkeys(measured.systems) if measured else {})
    published: dict[str, Cells] = {}
    ours: dict[str, dict[str, Cells]] = {}
    for system in systems:
        if system in paper().complexity:
            published[_law_title(system)] = {"law": f"O({paper().complexity[system]})"}
        if measured and (exponents := _exponents(measured, system)):
            own = {OWN: escape(measured.own_words(system, "plain"))}
            ours.setdefault(_law_title(system), {})[""] = exponents | own
    remarks = [
        "Ours are exponents of the length for the whole system without memory savings: the slope "
        "of log time, and of log peak memory above the built model, over three or more measured "
        "lengths; next to them the law's own exponent over the same lengths. Parts linear in the "
        "length, such as the feed-forward layers, draw the exponents towards 1. T5, BART and "
        "PEGASUS are transformers."
    ]
    if measured:
        remarks.append(f"Ours: {escape(measured.settings)}.")
    needs = f"{MEASURE} at three or more lengths"
    yield from Table(
        columns, published, ours, remarks, title="Measured exponents", needs=needs
    ).markdown()


def _law_title(system: str) -> str:
    return "transformer" if system == "transformer" else system_title(system)


LAWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    LOCOST: lambda n: n * np.log(n),
    LONGT5: lambda n: n * 255 + n * (n // 16),  # its published window and block
    **dict.fromkeys(("led", "bigbird", "lsg", "longt5-local"), lambda n: n),
    **dict.fromkeys(("t5", "bart", "pegasus"), lambda n: n**2),
}


def _exponents(measured: Measurements, system: str) -> dict[str, Value]:
    """Exponents from the system's plain rows; none from fewer than three lengths."""
    cells: dict[str, Value] = {}
    for kind, name in (("time", measured.time), ("memory", "peak_gib")):
        for mode in MODES:
            points = {
                length: value
                for length, row in sorted(measured.find(system, mode, "plain").items())
                if (value := figure(row, name)) and value > 0
            }
            if len(points) >= 3:
                cells[f"{kind}, {mode}"] = fit_exponent(list(points), list(points.values()))
                if system in LAWS:
                    law = LAWS[system](np.array(list(points), dtype=float))
                    cells["law's exponent"] = fit_exponent(list(points), law)
    return cells


def throughput(inputs: PaperInputs) -> Iterator[str]:
    """Samples a second; and as multiples of LongT5's, which can be compared across machines."""
    cases = {f"{shown} {mode}": (n, mode) for n, shown in LENGTHS.items() for mode in MODES}
    measured = inputs.measurements
    published: dict[str, dict[str, Value]] = {
        system: dict(zip(cases, [OUT_OF_MEMORY if v is None else v for v in row], strict=True))
        for system, row in paper().throughput.items()
    }
    ours: dict[str, dict[str, dict[str, Value]]] = {}
    for memory in MEMORIES if measured else ():
        assert measured
        for system in measured.systems:
            cells = {
                name: _rate(measured.find(system, mode, memory).get(n), measured.time)
                for name, (n, mode) in cases.items()
            }
            if any(value is not None for value in cells.values()):
                own = {OWN: escape(measured.own_words(system, memory))}
                ours.setdefault(memory, {})[system] = {**cells, **own}
    remarks = [
        "Of several runs the median (least to most). *Plain*: without memory savings; *saving*: "
        "with every memory saving the system has."
    ]
    if measured:
        of_cpu = "; seconds are CPU time" if measured.time == "cpu_s" else ""
        remarks.append(f"Ours: {escape(measured.settings)}{of_cpu}.")
    needs = f"{MEASURE} at 4K or 16K"
    rates = _titled({**dict.fromkeys(cases, DIGITS), OWN: ""}, published, _by_system(ours), remarks,
                    frozenset(cases), "Samples a second", needs)  # fmt: skip
    yield from rates.headed()
    multiples = _titled(
        {**dict.fromkeys(cases, TWO), OWN: ""},
        over_longt5(published, cases),
        _by_system({memory: over_longt5(rows, cases) for memory, rows in ours.items()}),
        ["Multiples, of medians, can be compared across machines."],
        frozenset(),
        "Multiples of LongT5's samples a second",
        needs,
    )
    yield from multiples.headed()


def _by_system(rows: Mapping[str, Mapping[str, Cells]]) -> dict[str, dict[str, Cells]]:
    """Rows by memory setting and system, by system first."""
    found: dict[str, dict[str, Cells]] = {}
    for memory, by_system in rows.items():
        for system, cells in by_system.items():
            found.setdefault(system, {})[memory] = cells
    return found


def over_longt5(rows: Mapping[str, Cells], names: Iterable[str]) -> dict[str, Cells]:
    """Rows whose figures of these names are multiples of LongT5's; none where it is alone."""
    base = rows.get(LONGT5, {})
    found: dict[str, dict[str, Value]] = {system: dict(row) for system, row in rows.items()}
    for name in names:
        alone = sum(figure_of(row.get(name)) is not None for row in rows.values()) < 2
        for system, row in rows.items():
            found[system][name] = None if alone else _over(row.get(name), base.get(name))
    return {
        system: row
        for system, row in found.items()
        if any(figure_of(value) is not None for value in row.values())
    }


def _titled(
    columns: Mapping[str, str],
    published: Mapping[str, Cells],
    ours: Mapping[str, Mapping[str, Cells]],
    remarks: list[str],
    apart: frozenset[str],
    title: str,
    needs: str,
) -> Table:
    """A table with a row for each system, by its name in the paper."""
    order = _in_order(published, ours)
    return Table(
        columns,
        {system_title(system): published[system] for system in order if system in published},
        {system_title(system): ours[system] for system in order if system in ours},
        remarks,
        apart,
        title=title,
        needs=needs,
    )


def _over(value: Value, base: Value) -> Value:
    ours, theirs = figure_of(value), figure_of(base)
    return None if ours is None or not theirs else ours / theirs


def _rate(row: Mapping[str, Any] | None, time: str) -> Value:
    """Samples a second by that clock; the reason where the case failed."""
    if row and "cross" in row:
        return str(row["cross"]).split(" (")[0]
    seconds = figure(row, time)
    if not row or not seconds:
        return None
    batch = row.get("batch", 1)
    least, most = extremes(row, time)
    return (
        batch / seconds if least == most else Spread(batch / seconds, batch / most, batch / least)
    )


def memory_multiples(measured: Measurements | None, memory: str) -> dict[str, dict[str, float]]:
    """By mode and system: peak memory at 16K as a multiple of the smallest; none of one system."""
    found: dict[str, dict[str, float]] = {mode: {} for mode in MODES}
    for mode in MODES if measured else ():
        assert measured
        peaks = {
            system: value
            for system in measured.systems
            if (value := figure(measured.find(system, mode, memory).get(16384), "peak_gib"))
        }
        if len(peaks) > 1:
            found[mode] = {system: peak / min(peaks.values()) for system, peak in peaks.items()}
    return found


def memory_table(measured: Measurements | None) -> Table:
    """Peak memory at 16K, as multiples of the smallest and, ours, in GiB."""
    gib = {mode: f"{mode}, GiB" for mode in MODES}
    published: dict[str, Cells] = {
        system: {"training": row[1] or OUT_OF_MEMORY, "inference": row[2]}
        for system, row in paper().scrolls.items()
    }
    ours: dict[str, dict[str, Cells]] = {}
    for memory in MEMORIES if measured else ():
        assert measured
        multiples = memory_multiples(measured, memory)
        for system in measured.systems:
            rows = {mode: measured.find(system, mode, memory).get(16384) for mode in MODES}
            if any(rows.values()):
                cells: dict[str, Value] = {mode: multiples[mode].get(system) for mode in MODES}
                cells |= {gib[mode]: _peak(row) for mode, row in rows.items()}
                cells[OWN] = escape(measured.own_words(system, memory))
                ours.setdefault(system, {})[memory] = cells
    remarks = ["The smallest of the systems in the table; peaks are above the built model."]
    columns = {"training": ONE, "inference": ONE, **{gib[mode]: TWO for mode in reversed(MODES)}}
    return _titled(
        {**columns, OWN: ""}, published, ours, remarks, frozenset(), "Memory at 16K",
        f"{MEASURE} at 16K",
    )  # fmt: skip


def _peak(row: Mapping[str, Any] | None) -> Value:
    """Peak memory in GiB; the reason where the case failed."""
    if row and "cross" in row:
        return str(row["cross"]).split(" (")[0]
    value = figure(row, "peak_gib")
    if not row or value is None:
        return None
    least, most = extremes(row, "peak_gib")
    return value if least == most else Spread(value, least, most)


def _in_order(published: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The paper's systems, then ours that it does not have."""
    return list(dict.fromkeys((*published, *ours)))
