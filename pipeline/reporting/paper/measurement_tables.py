"""The paper's tables of complexity, throughput, memory, datasets and settings, with ours below."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.common.power_law import fit_exponent
from pipeline.reporting.html import escape
from pipeline.reporting.measurements import Measurements, figure
from pipeline.reporting.paper.comparison_table import Cells, Table, Value
from pipeline.reporting.paper.inputs import PaperInputs, Results, ordered, system_title, title
from pipeline.reporting.paper.published import LOCOST, LONGT5, OUT_OF_MEMORY, paper

ONE, TWO, DIGITS = ".1f", ".2f", ".3g"
LENGTHS = {4096: "4K", 16384: "16K"}
MODES = ("inference", "training")
MEMORIES = ("plain", "saving")


def complexity(inputs: PaperInputs) -> Iterator[str]:
    """The published law of each layer, and the measured exponents of whole systems."""
    measured = inputs.measurements
    time, memory = ([f"{kind}, {mode}" for mode in MODES] for kind in ("time", "memory"))
    columns = {"law": "", "law's exponent": TWO, **dict.fromkeys((*time, *memory), TWO)}
    systems = _in_order(paper().complexity, dict.fromkeys(measured.systems) if measured else {})
    published: dict[str, Cells] = {}
    ours: dict[str, dict[str, Cells]] = {}
    for system in systems:
        if system in paper().complexity:
            published[_law_title(system)] = {"law": f"O({paper().complexity[system]})"}
        if measured and (exponents := _exponents(measured, system)):
            ours.setdefault(_law_title(system), {})[""] = exponents
    remarks = [
        "Ours are exponents of the length for the whole system without memory savings: the slope "
        "of log time, and of log peak memory above the built model, over three or more measured "
        "lengths; next to them the law's own exponent over the same lengths. Parts linear in the "
        "length, such as the feed-forward layers, draw the exponents towards 1. T5, BART and "
        "PEGASUS are transformers."
    ]
    if measured:
        remarks.append(f"Ours: {escape(measured.settings)}.")
    yield from Table(columns, published, ours, remarks).markdown()


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
    """Samples a second, and as multiples of LongT5's, which can be compared across machines."""
    cases = [(n, mode) for n in LENGTHS for mode in MODES]
    names = [f"{LENGTHS[n]} {mode}" for n, mode in cases]
    ratios = [f"{name}, × LongT5" for name in names]
    columns = {**dict.fromkeys(names, DIGITS), **dict.fromkeys(ratios, TWO)}
    measured = inputs.measurements

    def with_ratios(rows: Mapping[str, Mapping[str, Value]]) -> dict[str, Cells]:
        base = rows.get(LONGT5, {})
        return {
            system: {
                **row,
                **{
                    ratio: _over(row.get(n), base.get(n))
                    for n, ratio in zip(names, ratios, strict=True)
                },
            }
            for system, row in rows.items()
        }

    published = with_ratios(
        {
            system: dict(zip(names, [OUT_OF_MEMORY if v is None else v for v in row], strict=True))
            for system, row in paper().throughput.items()
        }
    )
    ours: dict[str, dict[str, Cells]] = {}
    for memory in MEMORIES if measured else ():
        assert measured
        rows = {
            system: {
                name: _rate(measured.find(system, mode, memory).get(n), measured.time)
                for name, (n, mode) in zip(names, cases, strict=True)
            }
            for system in measured.systems
        }
        for system, cells in with_ratios(rows).items():
            if any(value is not None for value in cells.values()):
                ours.setdefault(system, {})[memory] = cells
    remarks = [
        "Samples a second on different machines are not subtracted; their multiples of LongT5's "
        "are. *plain*: without memory savings, *saving*: with every memory saving the system has."
    ]
    if measured:
        of_cpu = "; seconds are CPU time" if measured.time == "cpu_s" else ""
        remarks.append(f"Ours: {escape(measured.settings)}{of_cpu}.")
    yield from _titled(columns, published, ours, remarks, frozenset(names)).markdown()


def _titled(
    columns: Mapping[str, str],
    published: Mapping[str, Cells],
    ours: Mapping[str, Mapping[str, Cells]],
    remarks: list[str],
    apart: frozenset[str] = frozenset(),
) -> Table:
    """A table with a row for each system, by its name in the paper."""
    order = _in_order(published, ours)
    return Table(
        columns,
        {system_title(system): published[system] for system in order if system in published},
        {system_title(system): ours[system] for system in order if system in ours},
        remarks,
        apart,
    )


def _over(value: Value, base: Value) -> Value:
    if isinstance(value, int | float) and isinstance(base, int | float) and base:
        return value / base
    return None


def _rate(row: Mapping[str, Any] | None, time: str) -> Value:
    """Samples a second by that clock; the reason where the case failed."""
    if row and "cross" in row:
        return str(row["cross"]).split(" (")[0]
    seconds = figure(row, time)
    return row.get("batch", 1) / seconds if row and seconds else None


def memory_multiples(measured: Measurements | None, memory: str) -> dict[str, dict[str, float]]:
    """By mode and system: peak memory at 16K as a multiple of the smallest."""
    found: dict[str, dict[str, float]] = {mode: {} for mode in MODES}
    for mode in MODES if measured else ():
        assert measured
        peaks = {
            system: value
            for system in measured.systems
            if (value := figure(measured.find(system, mode, memory).get(16384), "peak_gib"))
        }
        found[mode] = {system: peak / min(peaks.values()) for system, peak in peaks.items()}
    return found


def memory_table(measured: Measurements | None) -> Table:
    """Peak memory at 16K, as multiples of the smallest."""
    published: dict[str, Cells] = {
        system: {"training": row[1] or OUT_OF_MEMORY, "inference": row[2]}
        for system, row in paper().scrolls.items()
    }
    ours: dict[str, dict[str, Cells]] = {}
    for memory in MEMORIES:
        multiples = memory_multiples(measured, memory)
        for system in dict.fromkeys((*multiples["training"], *multiples["inference"])):
            cells = {mode: multiples[mode].get(system) for mode in MODES}
            ours.setdefault(system, {})[memory] = cells
    remarks = ["The smallest of the systems in the table; peaks are above the built model."]
    return _titled({"training": ONE, "inference": ONE}, published, ours, remarks)


def datasets(inputs: PaperInputs) -> Iterator[str]:
    """Pairs of each split, and the documents' lengths in tokens, of the splits given."""
    splits = ("train", "validation", "test")
    lengths = ("mean", "median", "max", "p90")
    columns = {**dict.fromkeys(splits, ","), "mean": ",.2f", **dict.fromkeys(lengths[1:], ",")}
    published: dict[str, Cells] = {
        one.title: dict(zip((*splits, *lengths), (*one.counts, *one.input), strict=True))
        for one in paper().sets.values()
    }
    ours: dict[str, dict[str, Cells]] = {}
    for name in ordered(inputs.manifests):
        manifests = {_split(manifest): manifest for manifest in inputs.manifests[name]}
        if summarised := {s: m for s, m in manifests.items() if m["kind"] == "summarisation"}:
            cells: dict[str, Value] = {s: m["counts"].get("kept") for s, m in summarised.items()}
            largest = max(summarised.values(), key=lambda m: m["counts"].get("kept", 0))
            source = largest["lengths"].get("source", {})
            cells |= {column: source.get(column) for column in lengths}
            ours[title(name)] = {"": cells}
    remarks = [
        "Ours: pairs kept in the shards; source tokens of the largest split given, with the end "
        "token, before truncation."
    ]
    yield from Table(columns, published, ours, remarks, first="set").markdown()


def _split(manifest: Results) -> str:
    split = str(manifest["split"])
    return "validation" if split in ("val", "valid") else split


def hyperparameters(inputs: PaperInputs) -> Iterator[str]:
    """The paper's settings, with those of our runs below."""
    c4 = [m for some in inputs.manifests.values() for m in some if m["kind"] != "summarisation"]
    shards = {"vocab_size": c4[0]["tokenizer"]["vocab_size"], **c4[0]["settings"]} if c4 else {}
    found: dict[str, Mapping[str, Any]] = {
        "pretraining": inputs.pretrain.settings if inputs.pretrain else {},
        "finetuning": next(iter(inputs.finetune.values())).settings if inputs.finetune else {},
        "data": shards,
    }
    called = {"pretraining": "", "finetuning": " (fine-tuning)", "data": " (pre-training shards)"}
    published: dict[str, Cells] = {}
    ours: dict[str, dict[str, Cells]] = {}
    for part, settings in paper().hyperparameters.items():
        for name, value in settings.items():
            row = f"`{name}`{called[part]}"
            published[row] = {"value": _plain(value)}
            if name in found[part]:
                ours[row] = {"": {"value": _plain(found[part][name])}}
    yield from Table({"value": ",.10g"}, published, ours, first="setting").markdown()


def _plain(value: Any) -> Value:
    return value if isinstance(value, int | float) else ", ".join(map(str, value))


def _in_order(published: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The paper's systems, then ours that it does not have."""
    return list(dict.fromkeys((*published, *ours)))
