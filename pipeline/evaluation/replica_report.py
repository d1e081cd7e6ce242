"""The report of the replica: several small systems, several seeds each, on the same documents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.evaluation import rouge
from pipeline.evaluation.bootstrap import Interval, intervals
from pipeline.evaluation.demo_report import Stage, stage_table
from pipeline.evaluation.material import Measurements, figure
from pipeline.evaluation.material import system_title as published_title
from pipeline.evaluation.page import write_page
from pipeline.evaluation.paper import LOCOST, LONGT5
from pipeline.evaluation.predictions import Predictions
from pipeline.evaluation.results import read_results, verdict
from pipeline.evaluation.rouge import Scores
from pipeline.evaluation.runs import LOSS_NOTE, Run, loss_table
from pipeline.evaluation.tables import markdown_table, settings_table

BUCKETS = (0, 1024, 2048, 4096)
"""Where groups of documents by length begin, in source tokens."""
PERMUTED, LEAD = "permuted", "lead"
DocumentScores = list[Scores]
"""One a document, in the test set's order."""


@dataclass(frozen=True)
class Material:
    """All the report is made of; systems by name, their seeds in order."""

    scores: dict[str, dict[str, list[DocumentScores]]]
    """By system and by input ("model", "permuted"), the scores of each seed."""
    lead: DocumentScores
    lengths: np.ndarray
    """(N,) source tokens of each document, uncut."""
    runs: dict[str, Run]
    measurements: Measurements
    stages: list[Stage]


def read_scores(folder: Path, system: str) -> DocumentScores:
    """A complete evaluation's, of the model or a system beside it. Raises ValueError without."""
    read_results(folder, (system,))
    return [record["scores"] for record in Predictions(folder, system).read()]


def over_seeds(seeds: Sequence[DocumentScores]) -> DocumentScores:
    """Each document's mean over seeds. Raises ValueError where they are not of equal documents."""
    if len({len(documents) for documents in seeds}) != 1:
        raise ValueError(f"evaluations of {', '.join(str(len(d)) for d in seeds)} documents")
    return [
        {name: float(np.mean([scores[name] for scores in document])) for name in document[0]}
        for document in zip(*seeds, strict=True)
    ]


def ratio(ours: DocumentScores, theirs: DocumentScores) -> Interval:
    """Of the two means of Mean ROUGE, with a bootstrap interval over the documents."""
    pairs = [
        {"ours": rouge.mean_rouge(a), "theirs": rouge.mean_rouge(b)}
        for a, b in zip(ours, theirs, strict=True)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        return intervals(pairs, derived={"ratio": lambda c: c["ours"] / c["theirs"]})["ratio"]


def write_report(material: Material, output: Path) -> None:
    """Write report.html and report.md into `output`, in this order."""
    output.mkdir(parents=True, exist_ok=True)
    write_page(sections(material), output)


def sections(material: Material) -> list[str]:
    """The report in parts of Markdown."""
    seeds = len(next(iter(material.scores.values()))["model"])
    tokens = material.lengths
    return [
        "# The headline in small: LOCOST beside LongT5 and LED",
        "Systems of one width and depth, each pre-trained once by gap sentences and fine-tuned "
        f"{'once' if seeds == 1 else f'with {seeds} seeds'} on whole documents: the same "
        f"tokenizer, texts, order, steps and recipes. The test set has {len(tokens)} documents of "
        f"{np.median(tokens):,.0f} tokens in the median, {np.percentile(tokens, 90):,.0f} at the "
        f"90th percentile, {tokens.max():,} at most.",
        "## Scores",
        score_table(material),
        "ROUGE F1 in percent, mean over seeds; intervals are of a bootstrap over the documents, "
        "each with its mean over seeds. *Permuted* is the same model given another document; "
        "*lead* is the document's first sentence.",
        ratios(material),
        "## By length",
        length_table(material),
        "Mean ROUGE of the documents whose source has so many tokens.",
        "## Losses",
        loss_table(material.runs),
        LOSS_NOTE + " *Source use* is how much greater the validation loss is, a target token, "
        "when each document is exchanged for another: 0 for a model that does not read.",
        "## Time and memory",
        *measured(material.measurements),
        "## Settings",
        settings_table(
            {
                name: run.settings
                for name, run in material.runs.items()
                if name.endswith(("pre-training", "seed 0"))
            }
        ),
        "## Stages",
        stage_table(material.stages),
    ]


def score_table(material: Material) -> str:
    """A row a system, and one of it given other documents; last the lead."""
    rows = []
    for system, inputs in material.scores.items():
        for name, seeds in inputs.items():
            label = system_title(system) if name == "model" else f"{system_title(system)}, {name}"
            each = ", ".join(f"{_mean(documents):.2f}" for documents in seeds)
            rows.append([label, *_cells(over_seeds(seeds)), each])
    rows.append([LEAD, *_cells(material.lead), ""])
    header = ["system", "ROUGE-1", "ROUGE-2", "ROUGE-Lsum", "Mean ROUGE", "each seed's"]
    return markdown_table(header, rows, align="lrrrrr")


def ratios(material: Material) -> str:
    """LOCOST's Mean ROUGE over the others', and whether the document matters to each."""
    ours = over_seeds(material.scores[LOCOST]["model"])
    words = [
        f"LOCOST's Mean ROUGE is {found['value']:.2f} times {system_title(system)}'s "
        f"(95 % interval {found['low']:.2f} to {found['high']:.2f})."
        for system, inputs in material.scores.items()
        if system != LOCOST
        for found in [ratio(ours, over_seeds(inputs["model"]))]
    ]
    for system, inputs in material.scores.items():
        true, other = (over_seeds(inputs[name]) for name in ("model", PERMUTED))
        minus = rouge.compare(true, other)["mean_rouge"]
        words.append(f"{system_title(system)}: {_uncapitalised(verdict(minus))}")
    return " ".join(words)


def length_table(material: Material) -> str:
    """A column a bucket of lengths: Mean ROUGE of each system, and LOCOST's over LongT5's."""
    ends = (*BUCKETS[1:], None)
    groups = [
        np.flatnonzero((material.lengths >= low) & (material.lengths < (high or np.inf)))
        for low, high in zip(BUCKETS, ends, strict=True)
    ]
    header = [
        f"{low:,} to {high - 1:,}" if high else f"{low:,} and more"
        for low, high in zip(BUCKETS, ends, strict=True)
    ]
    systems = {
        system: over_seeds(inputs["model"]) for system, inputs in material.scores.items()
    } | {LEAD: material.lead}

    def row(label: str, cell: Callable[[np.ndarray], str]) -> list[str]:
        return [label, *(cell(group) if len(group) else "–" for group in groups)]

    rows = [row("documents", lambda group: str(len(group)))]
    for system, documents in systems.items():
        title = system if system == LEAD else system_title(system)
        rows.append(row(title, lambda group, d=documents: f"{_mean([d[i] for i in group]):.2f}"))  # type: ignore[misc]
    if LONGT5 in systems:

        def beside(group: np.ndarray) -> str:
            found = ratio(*([systems[name][i] for i in group] for name in (LOCOST, LONGT5)))
            return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"

        rows.append(row(f"LOCOST / {system_title(LONGT5)}", beside))
    return markdown_table(["source tokens", *header], rows, align="l" + "r" * len(header))


def measured(measurements: Measurements) -> list[str]:
    """CPU seconds and peak memory of each system by length, and over LOCOST's."""
    rows = []
    for mode in ("training", "inference"):
        found = {name: measurements.find(name, mode, "plain") for name in measurements.systems}
        for length in sorted({length for rows in found.values() for length in rows}):
            for name, form in ((measurements.time, ".2f"), ("peak_gib", ".3f")):
                values = {s: figure(its.get(length), name) for s, its in found.items()}
                unit = "GiB" if name == "peak_gib" else "seconds"
                rows.append([f"{mode}, {length:,} tokens, {unit}", *_beside(values, form)])
    header = ["", *map(system_title, measurements.systems)]
    return [
        markdown_table(header, rows, align="l" + "r" * (len(header) - 1)),
        f"{measurements.settings}. Memory is the peak over the built model; in brackets LOCOST's "
        "figure over the system's.",
    ]


def system_title(name: str) -> str:
    """The paper's name of a system without its size, which is not that of these."""
    return published_title(name).removesuffix("-base")


def _beside(values: Mapping[str, float | None], form: str) -> list[str]:
    ours = values.get(LOCOST)
    return [
        "–" if value is None
        else f"{value:{form}}" + (f" ({ours / value:.2f})" if ours and system != LOCOST else "")
        for system, value in values.items()
    ]  # fmt: skip


def _cells(documents: DocumentScores) -> list[str]:
    found = rouge.aggregate(documents)
    mean = found["mean_rouge"]
    return [
        *(f"{found[name]['value']:.2f}" for name in ("rouge1", "rouge2", "rougeLsum")),
        f"{mean['value']:.2f} ({mean['low']:.2f} to {mean['high']:.2f})",
    ]


def _mean(documents: DocumentScores) -> float:
    return 100 * float(np.mean([rouge.mean_rouge(scores) for scores in documents]))


def _uncapitalised(text: str) -> str:
    return text[0].lower() + text[1:]
