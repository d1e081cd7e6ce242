"""The record of systems in words: the printed summary, and the tables of a Markdown page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.benchmarking.cases import Row
from pipeline.benchmarking.system_ratios import (
    ENOUGH_ROUNDS,
    FIELDS,
    OURS,
    Figure,
    Ratio,
    Verdict,
    longest,
    ratios,
    targets,
)
from pipeline.benchmarking.system_record import lengths_by_machine

HEADINGS: dict[Verdict, str] = {
    "loses": "Where LOCOST loses",
    "within the spread": "Within the spread",
    "too few rounds": "Too few rounds to say",
    "wins": "Where LOCOST wins",
}
UNITS: dict[Figure, str] = {"memory": "GiB", "wall time": "s", "CPU time": "CPU s"}
RULE = (
    "A ratio is LOCOST's figure over the system's: below 1 LOCOST is leaner or faster. It is the "
    "ratio of the medians, in brackets the least and the most over the rounds, each of two runs of "
    f"one round. LOCOST wins or loses only where all rounds, at least {ENOUGH_ROUNDS}, agree; "
    "where they do not, the difference is within the spread."
)


def summary(record: Mapping[str, Any]) -> Iterator[str]:
    """The printed lines: weights, longest inputs, where LOCOST loses and wins, targets."""
    rows, found = record["rows"], ratios(record["rows"])
    yield ""
    weights = {row["subject"]: row["weights_gib"] for row in rows if "weights_gib" in row}
    yield "weights, not counted in the peak: " + ", ".join(
        f"{system} {size:.2f} GiB" for system, size in weights.items()
    )
    yield "longest input that ran, of the lengths tried:"
    for key, (fits, fails) in longest(rows).items():
        yield f"  {', '.join(key):40}{fits:>9,}" + (f", not {fails:,}" if fails else "")
    yield RULE
    for verdict, heading in HEADINGS.items():
        yield f"{heading}:"
        grouped = by_setting(found, verdict)
        for group, some in grouped.items():
            yield f"  {', '.join(group)}: {'; '.join(map(_at_length, some))}"
        if not grouped:
            yield "  nowhere"
    for target, ratio, outcome in targets(found):
        yield (
            f"target {outcome}: {target.figure} against {target.system}, {target.mode}, "
            f"{ratio.memory}, {target.words}: {_at_length(ratio)}"
        )


def by_setting(
    found: Sequence[Ratio], verdict: Verdict
) -> dict[tuple[str, str, str, str], list[Ratio]]:
    """The ratios with that verdict, by mode, memory setting, system and figure, in that order;
    those of one group by length."""
    systems = list(dict.fromkeys(ratio.system for ratio in found))

    def place(ratio: Ratio) -> tuple[str, str, int, int, int]:
        system, figure = systems.index(ratio.system), list(FIELDS).index(ratio.figure)
        return ratio.mode, ratio.memory, system, figure, ratio.length

    grouped: dict[tuple[str, str, str, str], list[Ratio]] = {}
    for ratio in sorted(found, key=place):
        if ratio.verdict == verdict:
            key = (ratio.mode, ratio.memory, ratio.system, ratio.figure)
            grouped.setdefault(key, []).append(ratio)
    return grouped


def page_lines(record: Mapping[str, Any], file: str) -> Iterator[str]:
    """The page's part: settings, tables of figures, kernels, where LOCOST loses, targets."""
    rows, found = record["rows"], ratios(record["rows"])
    yield f"All figures are from `{file}`. {caption(record)}"
    for figure in FIELDS:
        yield f"\n### {figure[0].upper()}{figure[1:]}, {UNITS[figure]}\n"
        yield from _figures(rows, figure)
    yield "\n### Kernels, precision, recomputation\n"
    yield from _kernels(rows)
    yield "\n### Longest input\n"
    yield from _longest(rows)
    yield f"\n{RULE}"
    for verdict, heading in HEADINGS.items():
        grouped = by_setting(found, verdict)
        if grouped or verdict == "loses":
            yield f"\n### {heading}\n"
            yield from _table(
                ["mode", "memory", "system", "figure", "at each length"],
                [[*key, "; ".join(map(_at_length, some))] for key, some in grouped.items()],
                "lllll",
            )
    yield "\n### The project's targets\n"
    yield from _table(
        ["LOCOST against", "mode", "memory", "figure", "target", "found", ""],
        [
            [target.system, target.mode, ratio.memory, target.figure, target.words,
             _at_length(ratio), outcome]
            for target, ratio, outcome in targets(found)
        ],
        "lllllll",
    )  # fmt: skip


def caption(record: Mapping[str, Any]) -> str:
    """What the record's runs share, and how quiet the machine was."""
    its = record["settings"]
    made = [run for row in record["rows"] for run in row["runs"] if "as" not in row]
    legacy = its["legacy_versions"]
    versions = ", ".join(f"{name} {version}" for name, version in its["versions"].items())
    if legacy and any(row["subject"].startswith("lsg") for row in record["rows"]):
        versions += f" (LSG: torch {legacy['torch']}, transformers {legacy['transformers']})"
    quiet = ""
    if made:
        loads = [run["load"] for run in made]
        busiest = max(run["others_s"] / run["elapsed_s"] for run in made)
        quiet = (
            f" {len(made)} runs, in {len({run['sitting'] for run in made})} sittings; load average "
            f"before a run {min(loads):.2f} to {max(loads):.2f}, other programs took at "
            f"most {busiest:.2f} CPU seconds in a second of a run."
        )
    chosen = [
        f"`{name}={value}`" for name, value in its["environment"].items() if "OMP" not in name
    ]
    allocator = " ".join(chosen) or "its default settings"
    limit = its["memory_limit_gib"]
    limit = f"{limit:.3g} GiB" if isinstance(limit, float) else "the available memory"
    return (
        f"{_machines(record)}; {versions}; base sizes, random weights, no dropout; {its['dtype']}, "
        f"batch {its['batch']}, {its['tokens']} target tokens. Plain: nothing is recomputed; "
        "saving: every memory saving that a system has. Each run is a process of its own, the "
        "systems in turn; a cell is the median of its runs (least to most); ×: no result within "
        f"{limit} and {its['limit_s']:g} s. Peaks are above the built model, gradients included. "
        "They are resident memory, with what the C library keeps of freed blocks under, for all "
        f"systems, {allocator}.{quiet}"
    )


def _machines(record: Mapping[str, Any]) -> str:
    """The machines of the runs; where there are several, with the lengths measured on each."""
    by_machine = lengths_by_machine(record["rows"])
    if len(by_machine) < 2:
        return record["device"]
    return ", ".join(
        f"{machine} ({', '.join(f'{length:,}' for length in lengths)} tokens)"
        for machine, lengths in by_machine.items()
    )


def _figures(rows: Sequence[Row], figure: Figure) -> Iterator[str]:
    """A row a length, mode and memory setting; a column a system."""
    systems = list(dict.fromkeys(row["subject"] for row in sorted(rows, key=_rank)))
    places = dict.fromkeys(
        (row["mode"], row["memory"], row["length"])
        for row in sorted(rows, key=lambda row: (row["mode"], row["memory"], row["length"]))
        if "as" not in row
    )
    known = {
        (row["mode"], row["memory"], row["length"], row["subject"]): _cell(row, FIELDS[figure])
        for row in rows
    }
    yield from _table(
        ["", "tokens", *systems],
        [
            [f"{mode}, {memory}", f"{length:,}"]
            + [known.get((mode, memory, length, system), "") for system in systems]
            for mode, memory, length in places
        ],
        "lr" + "r" * len(systems),
    )


def _rank(row: Row) -> bool:
    return row["subject"] != OURS


def _cell(row: Row, field: str) -> str:
    if "cross" in row:
        return "×"
    form = "{:.3g}" if row[field] < 100 else "{:.0f}"
    median, least, most = (form.format(row[f"{field}{end}"]) for end in ("", "_min", "_max"))
    return median if least == most else f"{median} ({least}–{most})"


def _kernels(rows: Sequence[Row]) -> Iterator[str]:
    """Each system's kernels as the runs report them, and why it has crosses."""
    said: dict[str, dict[str, dict[str, list[int]]]] = {}
    for row in sorted(rows, key=_rank):
        its = said.setdefault(row["subject"], {"kernel": {}, "dtype": {}, "again": {}, "cross": {}})
        if "cross" in row:
            words = f"{row['mode']}, {row['memory']}, {row['length']:,}: {row['cross']}"
            its["cross"].setdefault(words, [])
            continue
        its["kernel"].setdefault(row["kernel"], []).append(row["length"])
        its["dtype"].setdefault(row["dtype"], [])
        if row["recomputation"]:
            its["again"].setdefault(f"{row['mode']}, {row['memory']}", [])
    yield from _table(
        ["system", "kernels", "precision", "recomputes in", "crosses"],
        [
            [
                system,
                " or ".join(
                    words if len(its["kernel"]) == 1 else f"{words} (up to {max(lengths):,})"
                    for words, lengths in its["kernel"].items()
                ),
                *(("; ".join(its[name]) or "–") for name in ("dtype", "again", "cross")),
            ]
            for system, its in said.items()
        ],
        "lllll",
    )


def _longest(rows: Sequence[Row]) -> Iterator[str]:
    found = longest(sorted(rows, key=_rank))
    kinds = list(dict.fromkeys((mode, memory) for _, mode, memory in sorted(found)))
    systems = list(dict.fromkeys(row["subject"] for row in sorted(rows, key=_rank)))
    yield from _table(
        ["tokens", *(f"{mode}, {memory}" for mode, memory in kinds)],
        [
            [system, *(_fits(found.get((system, mode, memory))) for mode, memory in kinds)]
            for system in systems
        ],
        "l" + "r" * len(kinds),
    )


def _fits(found: tuple[int, int | None] | None) -> str:
    if found is None:
        return ""
    fits, fails = found
    return (f"{fits:,}" if fits else "none") + (f", not {fails:,}" if fails else "")


def _at_length(ratio: Ratio) -> str:
    """A ratio at its length, with its spread or the reason for a missing side."""
    start = f"{ratio.length:,}: "
    if ratio.reason:
        return f"{start}{'only LOCOST' if ratio.median < 1 else 'LOCOST not'} ({ratio.reason})"
    spread = f"{min(ratio.rounds):.3f} to {max(ratio.rounds):.3f}" if ratio.rounds else "no round"
    apart = f"; rounds of different sittings: {ratio.apart}" if ratio.apart else ""
    return f"{start}{ratio.median:.3f} ({spread}{apart})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> Iterator[str]:
    from pipeline.common.html import markdown_table  # needs more than a GPU node may have

    if rows:
        yield markdown_table(header, rows, align).rstrip("\n")
    else:
        yield "Nowhere."
