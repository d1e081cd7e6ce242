"""The replica's report: small systems, several seeds each, compared on the same documents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.common.html import folded, markdown_table, write_page
from pipeline.reporting import source_use
from pipeline.reporting.evaluation_reader import permuted_verdict, read_results, verdict
from pipeline.reporting.measurements import Measurements, figure
from pipeline.reporting.paper.inputs import system_title as published_title
from pipeline.reporting.paper.published import LOCOST, LONGT5
from pipeline.reporting.run_reader import LOSS_NOTE, Run, loss_table
from pipeline.reporting.stage_times import StageTime, stage_table
from pipeline.reporting.tables import settings_table
from pipeline.scoring import rouge
from pipeline.scoring.bootstrap import Interval, intervals, ranged
from pipeline.scoring.predictions import Predictions
from pipeline.scoring.rouge import Scores
from pipeline.scoring.source_use import Losses, Rise, mean_over_seeds, rises

BUCKETS = (0, 1024, 2048, 4096)
"""Lower ends of the groups of documents by length, in source tokens."""
PERMUTED, LEAD = "permuted", "lead"
DocumentScores = list[Scores]
"""ROUGE of each document, in the test set's order."""


@dataclass(frozen=True)
class ReplicaInputs:
    """Everything the report shows; systems by name, their seeds in order."""

    scores: dict[str, dict[str, list[DocumentScores]]]
    """By system and input ("model", "permuted"): the scores of each seed."""
    lead: DocumentScores
    letters: str
    """What of the letters no score covers."""
    lengths: np.ndarray
    """(N,) source tokens of each document, before truncation."""
    runs: dict[str, Run]
    measurements: Measurements
    stages: list[StageTime]
    source_use: dict[str, list[Rise]]
    """By system, where all its seeds were measured."""

    @property
    def reading(self) -> dict[str, dict[str, list[Rise]]]:
        """Source use by position as the figure and the table show it: one panel."""
        curves = {system_title(system): rises for system, rises in self.source_use.items()}
        return {"Test set": curves} if curves else {}


def read_rises(folders: Sequence[Path]) -> list[Rise] | None:
    """A system's rises of the loss by part of the source, from the losses of each document's mean
    over seeds; None where a seed lacks them. Raises ValueError where the seeds' documents differ.
    """
    stores = [Losses(folder, "model") for folder in folders]
    if not all(store.complete for store in stores):
        return None
    return rises(mean_over_seeds([store.read() for store in stores]))


def read_scores(folder: Path, system: str) -> DocumentScores:
    """Scores of the model, or of another system, in a complete evaluation; ValueError without."""
    read_results(folder, (system,))
    return [record["scores"] for record in Predictions(folder, system).read()]


def over_seeds(seeds: Sequence[DocumentScores]) -> DocumentScores:
    """Each document's mean over seeds. Raises ValueError where the seeds' documents differ."""
    if len({len(documents) for documents in seeds}) != 1:
        raise ValueError(
            f"the seeds' evaluations have {', '.join(str(len(d)) for d in seeds)} documents; "
            "evaluate all of them on the same test set"
        )
    return [
        {name: float(np.mean([scores[name] for scores in document])) for name in document[0]}
        for document in zip(*seeds, strict=True)
    ]


def ratio(ours: DocumentScores, theirs: DocumentScores) -> Interval:
    """Ratio of the two systems' Mean ROUGE, with a bootstrap interval over documents."""
    pairs = [
        {"ours": rouge.mean_rouge(a), "theirs": rouge.mean_rouge(b)}
        for a, b in zip(ours, theirs, strict=True)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        return intervals(pairs, derived={"ratio": lambda c: c["ours"] / c["theirs"]})["ratio"]


def write_report(inputs: ReplicaInputs, output: Path) -> None:
    """Write the picture, report.html and report.md into `output`, in this order."""
    output.mkdir(parents=True, exist_ok=True)
    if inputs.reading:
        source_use.plot_rises(inputs.reading, output / source_use.FIGURE)
    write_page(sections(inputs), output)


def sections(inputs: ReplicaInputs) -> list[str]:
    """The report's sections, in Markdown."""
    seeds = len(next(iter(inputs.scores.values()))["model"])
    tokens = inputs.lengths
    return [
        "# The headline in miniature: LOCOST, LongT5 and LED",
        "Systems of equal width and depth, each pre-trained once on gap sentences and fine-tuned "
        f"{'once' if seeds == 1 else f'with {seeds} seeds'} on whole documents, with the same "
        f"tokenizer, texts, order, steps and recipes. The test set has {len(tokens)} documents; "
        f"their length is {np.median(tokens):,.0f} tokens in the median, "
        f"{np.percentile(tokens, 90):,.0f} at the 90th percentile, {tokens.max():,} at most.",
        "## Scores",
        score_table(inputs),
        inputs.letters,
        "ROUGE F1 in percent, mean over seeds; 95 % intervals by bootstrap over documents, each "
        "with its mean over seeds. *Permuted* is the same model given another document; *lead* is "
        "the document's first sentence.",
        ratios(inputs),
        "## By length",
        length_table(inputs),
        "Mean ROUGE of the documents with that many source tokens.",
        *source_use.sections(inputs.reading),
        "## Losses",
        loss_table(inputs.runs),
        LOSS_NOTE + " *Source use* is the rise of the validation loss, per target token, when each "
        "document is replaced by another: 0 for a model that does not use its source.",
        "## Time and memory",
        *measured(inputs.measurements),
        "## Settings",
        *folded(
            "Settings of the training runs",
            [
                settings_table(
                    {
                        name: run.settings
                        for name, run in inputs.runs.items()
                        if name.endswith(("pre-training", "seed 0"))
                    }
                )
            ],
        ),
        "## Stages",
        stage_table(inputs.stages),
    ]


def score_table(inputs: ReplicaInputs) -> str:
    """Two rows a system (its own and permuted documents), then the lead."""
    rows = []
    for system, by_input in inputs.scores.items():
        for name, seeds in by_input.items():
            label = system_title(system) if name == "model" else f"{system_title(system)}, {name}"
            each = ", ".join(f"{_mean(documents):.2f}" for documents in seeds)
            rows.append([label, *_cells(over_seeds(seeds)), each])
    rows.append([LEAD, *_cells(inputs.lead), ""])
    header = ["system", "ROUGE-1", "ROUGE-2", "ROUGE-Lsum", "Mean ROUGE", "each seed"]
    return markdown_table(header, rows, align="lrrrrr")


def ratios(inputs: ReplicaInputs) -> str:
    """LOCOST's Mean ROUGE over each other system's; whether each uses its document and beats the
    document's first sentence."""
    ours = over_seeds(inputs.scores[LOCOST]["model"])
    words = [
        f"LOCOST's Mean ROUGE is {found['value']:.2f} times {system_title(system)}'s "
        f"(95 % interval {found['low']:.2f} to {found['high']:.2f})."
        for system, by_input in inputs.scores.items()
        if system != LOCOST
        for found in [ratio(ours, over_seeds(by_input["model"]))]
    ]
    for system, by_input in inputs.scores.items():
        true, other = (over_seeds(by_input[name]) for name in ("model", PERMUTED))
        minus = rouge.compare(true, other)["mean_rouge"]
        words.append(permuted_verdict(minus, system_title(system)))
        minus = rouge.compare(true, inputs.lead)["mean_rouge"]
        words.append(verdict(minus, "the document's first sentence", system_title(system)))
    return "\n".join(f"- {sentence}" for sentence in words)


def length_table(inputs: ReplicaInputs) -> str:
    """A column a bucket of lengths: each system's Mean ROUGE, and LOCOST's over LongT5's."""
    ends = (*BUCKETS[1:], None)
    groups = [
        np.flatnonzero((inputs.lengths >= low) & (inputs.lengths < (high or np.inf)))
        for low, high in zip(BUCKETS, ends, strict=True)
    ]
    header = [
        f"{low:,} to {high - 1:,}" if high else f"{low:,} and more"
        for low, high in zip(BUCKETS, ends, strict=True)
    ]
    systems = {
        system: over_seeds(by_input["model"]) for system, by_input in inputs.scores.items()
    } | {LEAD: inputs.lead}

    def row(label: str, cell: Callable[[np.ndarray], str]) -> list[str]:
        return [label, *(cell(group) if len(group) else "–" for group in groups)]

    rows = [row("documents", lambda group: str(len(group)))]
    for system, documents in systems.items():
        title = system if system == LEAD else system_title(system)
        rows.append(row(title, lambda group, d=documents: f"{_mean([d[i] for i in group]):.2f}"))  # type: ignore[misc]
    if LONGT5 in systems:

        def over_longt5(group: np.ndarray) -> str:
            found = ratio(*([systems[name][i] for i in group] for name in (LOCOST, LONGT5)))
            return ranged(found)

        rows.append(row(f"LOCOST / {system_title(LONGT5)}", over_longt5))
    return markdown_table(["source tokens", *header], rows, align="l" + "r" * len(header))


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


def system_title(name: str) -> str:
    """The paper's name of a system without its size, which these do not have."""
    return published_title(name).removesuffix("-base")


def _with_shares(values: Mapping[str, float | None], form: str) -> list[str]:
    ours = values.get(LOCOST)
    return [
        "–" if value is None
        else f"{value:{form}}" + (f" ({ours / value:.2f})" if ours and system != LOCOST else "")
        for system, value in values.items()
    ]  # fmt: skip


def _cells(documents: DocumentScores) -> list[str]:
    found = rouge.aggregate(documents)
    return [ranged(found[name]) for name in ("rouge1", "rouge2", "rougeLsum", "mean_rouge")]


def _mean(documents: DocumentScores) -> float:
    return 100 * float(np.mean([rouge.mean_rouge(scores) for scores in documents]))
