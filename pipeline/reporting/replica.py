"""The replica's page: small systems tuned alike, several seeds each, on the same documents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.common.html import escape, folded, markdown_table, write_page
from pipeline.reporting import source_use
from pipeline.reporting.evaluation_reader import permuted_verdict, verdict
from pipeline.reporting.measurements import Measurements, figure
from pipeline.reporting.paper.inputs import system_title as published_title
from pipeline.reporting.paper.published import LOCOST, LONGT5
from pipeline.reporting.replica_results import (
    COLUMNS,
    MEAN,
    MODEL,
    PERMUTED,
    TRIVIAL,
    ReplicaResults,
)
from pipeline.reporting.tables import settings_table
from pipeline.scoring.bootstrap import Interval, ranged, seed_intervals
from pipeline.scoring.source_use import Rise, mean_over_seeds, rises

BUCKETS = (0, 1024, 2048, 4096, 8192)
"""Lower ends of the groups of documents by length, in source tokens."""
TRAININGS = {"pretrain": "pre-training", "finetune": "fine-tuning"}


def write_report(results: ReplicaResults, output: Path) -> None:
    """Write the picture, report.html and report.md into `output`, in this order."""
    output.mkdir(parents=True, exist_ok=True)
    if curves := reading(results):
        source_use.plot_rises(curves, output / source_use.FIGURE)
    write_page(["# The headline in miniature: LOCOST, LongT5 and LED", *sections(results)], output)


def page_lines(results: ReplicaResults) -> str:
    """The results as they stand in docs/replica.md: without pictures and settings."""
    text = "\n\n".join(part.strip() for part in sections(results, whole=False))
    return "\n".join(line for line in text.splitlines() if not line.startswith("!["))


def sections(results: ReplicaResults, whole: bool = True) -> Iterator[str]:
    """The sections in Markdown."""
    seeds = {system_title(system): len(found) for system, found in results.seeds.items()}
    of_seeds = ", ".join(f"{name} {count}" for name, count in seeds.items())
    tokens, words = results.lengths, results.reference_words
    yield (
        f"Seeds of pre-training and fine-tuning: {of_seeds}. The test set has {len(tokens):,} "
        f"documents of {tokens.min():,} to {tokens.max():,} tokens, {np.median(tokens):,.0f} in "
        f"the median; their references have {np.median(words):,.0f} words in the median."
    )
    yield "## Scores"
    yield score_table(results)
    yield (
        "ROUGE F1 in percent, mean over seeds, with 95 % intervals by bootstrap over seeds and "
        "documents together. Three seeds are few: where they differ, the true interval is wider. "
        "*Permuted* is the same model given another document."
    )
    yield "\n".join(f"- {sentence}" for sentence in verdicts(results))
    yield "## By length"
    yield length_table(results)
    yield "Mean ROUGE of the documents with that many source tokens."
    yield from source_use.sections(reading(results))
    yield "## Losses"
    yield loss_table(results)
    yield (
        "The last validation's, in nats per target token. *Source use* is the rise of the loss "
        "when each document is replaced by another: 0 for a model that does not use its source."
    )
    yield "## The search"
    yield search_table(results)
    yield (
        "The same trials for each system; chosen (*) is the lowest validation loss, of the "
        "pre-trainings, then of the fine-tunings from the weights of the chosen one."
    )
    yield "## Time and memory"
    if results.measurements is None:
        yield "Not measured yet."
    else:
        yield from measured(results.measurements)
    yield "## An example"
    yield from examples(results)
    if whole:
        yield "## Settings"
        yield from folded("Settings of the training runs", [settings_table(_settings(results))])


def score_table(results: ReplicaResults) -> str:
    """Two rows a system (its own and permuted documents), then the trivial ones."""
    by_column = {column: seed_intervals(results.groups(column), 100) for column in (*COLUMNS, MEAN)}
    rows = []
    for group, names in results.groups().items():
        for name, scores in names.items():
            title = TRIVIAL.get(group) or system_title(group)
            each = ", ".join(f"{100 * seed.mean():.2f}" for seed in scores)
            rows.append(
                [
                    title if name == MODEL else f"{title}, {name}",
                    *(ranged(found[f"{group}/{name}"]) for found in by_column.values()),
                    "" if group in TRIVIAL else each,
                ]
            )
    header = ["", "ROUGE-1", "ROUGE-2", "ROUGE-Lsum", "Mean ROUGE", "each seed"]
    return markdown_table(header, rows, "lrrrrr")


def verdicts(results: ReplicaResults) -> Iterator[str]:
    """LOCOST's Mean ROUGE over each other system's; whether each system uses its document and
    beats the trivial ones."""
    groups = results.groups()
    derived: dict[str, Callable[[Any], Any]] = {}
    for system in results.seeds:
        derived[f"{system} over"] = _over(f"{LOCOST}/{MODEL}", f"{system}/{MODEL}")
        for other in (f"{system}/{PERMUTED}", *(f"{name}/{MODEL}" for name in TRIVIAL)):
            derived[f"{system} - {other}"] = _minus(f"{system}/{MODEL}", other)
    if LOCOST not in groups:
        derived = {name: one for name, one in derived.items() if not name.endswith(" over")}
    found = seed_intervals(groups, 100, derived=derived)
    for system in results.seeds:
        if system != LOCOST and f"{system} over" in found:
            times = _times(found[f"{system} over"])
            yield f"LOCOST's Mean ROUGE is {times} {system_title(system)}'s."
    for system in results.seeds:
        title = system_title(system)
        yield permuted_verdict(found[f"{system} - {system}/{PERMUTED}"], title)
        for name, what in TRIVIAL.items():
            yield verdict(found[f"{system} - {name}/{MODEL}"], what, title)


def _over(ours: str, theirs: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    return lambda columns: columns[ours] / np.maximum(columns[theirs], 1e-9)


def _minus(ours: str, theirs: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    return lambda columns: columns[ours] - columns[theirs]


def _times(found: Interval) -> str:
    return f"{found['value']:.2f} times (95 % interval {found['low']:.2f} to {found['high']:.2f})"


def length_table(results: ReplicaResults) -> str:
    """A column a bucket of lengths: each system's Mean ROUGE, and LOCOST's over LongT5's."""
    lengths, groups = results.lengths, results.groups()
    ends = (*BUCKETS[1:], None)
    chosen = [
        np.flatnonzero((lengths >= low) & (lengths < (high or np.inf)))
        for low, high in zip(BUCKETS, ends, strict=True)
    ]
    header = [
        f"{low:,} to {high - 1:,}" if high else f"{low:,} and more"
        for low, high in zip(BUCKETS, ends, strict=True)
    ]

    def row(label: str, cell: Callable[[np.ndarray], str]) -> list[str]:
        return [label, *(cell(group) if len(group) else "–" for group in chosen)]

    rows = [row("documents", lambda group: str(len(group)))]
    for name, scores in groups.items():
        title = TRIVIAL.get(name) or system_title(name)
        rows.append(row(title, lambda group, s=scores: f"{100 * s[MODEL][:, group].mean():.2f}"))  # type: ignore[misc]
    if {LOCOST, LONGT5} <= groups.keys():

        def over_longt5(group: np.ndarray) -> str:
            two = {name: {MODEL: groups[name][MODEL][:, group]} for name in (LOCOST, LONGT5)}
            ratio = _over(f"{LOCOST}/{MODEL}", f"{LONGT5}/{MODEL}")
            return ranged(seed_intervals(two, derived={"ratio": ratio})["ratio"])

        rows.append(row(f"LOCOST / {system_title(LONGT5)}", over_longt5))
    return markdown_table(["source tokens", *header], rows, "l" + "r" * len(header))


def reading(results: ReplicaResults) -> dict[str, dict[str, list[Rise]]]:
    """Source use by position, of the losses of each document's mean over seeds: one panel."""
    curves = {
        system_title(system): rises(mean_over_seeds([seed["losses"] for seed in seeds]))
        for system, seeds in results.seeds.items()
        if all(seed["losses"] for seed in seeds)
    }
    return {"Test set": curves} if curves else {}


def loss_table(results: ReplicaResults) -> str:
    """A row a system and a training, the seeds' values in their order."""
    rows = []
    for system, seeds in results.seeds.items():
        for kind, title in TRAININGS.items():
            cells = [
                ", ".join(f"{seed[kind][name]:.3f}" for seed in seeds if name in seed[kind])
                for name in ("validation_loss", "source_use")
            ]
            rows.append([f"{system_title(system)}, {title}", *cells])
    header = ["", "validation loss, each seed", "source use, each seed"]
    return markdown_table(header, rows, "lrr")


def search_table(results: ReplicaResults) -> str:
    """A row a trial: its settings, then each system's validation loss and source use."""
    rows: dict[str, list[str]] = {}
    for search in results.searches.values():
        for kind, title in TRAININGS.items():
            for trial in search[kind]["trials"]:
                settings = trial["settings"]
                label = f"{title}, rate {settings['train.peak_lr']:g}"
                if kind == "pretrain":
                    start = settings.get("model.cross_attention_initialisation", "code")
                    label += f", embedding x {settings['train.embedding_lr_scale']:g}, {start}"
                use = f", {trial['source_use']:.3f}" if "source_use" in trial else ""
                mark = " *" if trial["name"] == search[kind]["chosen"] else ""
                cell = f"{trial['validation_loss']:.3f}{use}{mark}"
                rows.setdefault(label, []).append(cell)
    header = [f"{system_title(system)}: loss, source use" for system in results.searches]
    return markdown_table(
        ["trial", *header], [[label, *cells] for label, cells in rows.items()],
        "l" + "r" * len(header),
    )  # fmt: skip


def measured(measurements: Measurements) -> list[str]:
    """Time and peak memory of each system by length, with LOCOST's as a share of them."""
    rows = []
    for mode in ("training", "inference"):
        found = {name: measurements.find(name, mode, "plain") for name in measurements.systems}
        for length in sorted({length for rows in found.values() for length in rows}):
            for name, form in ((measurements.time, ".2f"), ("peak_gib", ".3f")):
                values = {s: figure(its.get(length), name) for s, its in found.items()}
                unit = "GiB" if name == "peak_gib" else "seconds"
                rows.append([f"{mode}, {length:,} tokens, {unit}", *_with_shares(values, form)])
    header = ["", *map(system_title, measurements.systems)]
    kernels = (
        f"{system_title(name)}: {measurements.own_words(name, 'plain')}"
        for name in measurements.systems
    )
    return [
        markdown_table(header, rows, align="l" + "r" * (len(header) - 1)),
        f"{measurements.settings}; {'; '.join(kernels)}. Memory is the peak above the built model; "
        "in brackets: LOCOST's figure over the system's.",
    ]


def examples(results: ReplicaResults) -> Iterator[str]:
    """The first test document's reference, and each system's summary of it, by its first seed."""
    first = {system: seeds[0]["example"] for system, seeds in results.seeds.items()}
    rows = [["reference", escape(next(iter(first.values()))["reference"])]]
    rows += [[system_title(system), escape(one["prediction"])] for system, one in first.items()]
    yield markdown_table(["", "the first test document"], rows, "ll")


def _settings(results: ReplicaResults) -> dict[str, dict[str, Any]]:
    return {
        f"{system}, {kind}": seeds[0]["settings"][kind]
        for system, seeds in results.seeds.items()
        for kind in ("pretrain", "finetune")
    }


def system_title(name: str) -> str:
    """The paper's name of a system without its size, which these do not have."""
    return published_title(name).removesuffix("-base")


def _with_shares(values: Mapping[str, float | None], form: str) -> Sequence[str]:
    ours = values.get(LOCOST)
    return [
        "–" if value is None
        else f"{value:{form}}" + (f" ({ours / value:.2f})" if ours and system != LOCOST else "")
        for system, value in values.items()
    ]  # fmt: skip
