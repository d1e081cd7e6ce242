"""The report of a small run: what it scored, how it learned, what it writes, what it took."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.evaluation import plots
from pipeline.evaluation.bootstrap import Interval
from pipeline.evaluation.examples import Examples, derangement, mean_words
from pipeline.evaluation.marking import Use, Words, beginning, find_use, mark, share
from pipeline.evaluation.page import escape, hide_paths, write_page
from pipeline.evaluation.predictions import Predictions, Record
from pipeline.evaluation.results import read_results, shown_settings
from pipeline.evaluation.rouge import compare, mean_rouge
from pipeline.evaluation.runs import LOSS_NOTE, Run, loss_table
from pipeline.evaluation.tables import markdown_table, rouge_table, settings_table
from pipeline.shards import Dataset

TASK = (
    "The document is a Python function's source in words, its name first, without the first "
    "paragraph of its docstring; the summary is that paragraph, as its author wrote it."
)
SAMPLES, SAMPLE_SEED = 10, 0
DOCUMENT_SHOWN = 600  # characters of a document's beginning
TRIVIAL = ("lead", "lead words")
OTHERS = {"lead": "lead", "lead words": "lead_words", "permuted": "permuted"}
"""evaluate.py's systems beside the model, by what the report calls them."""
SYSTEMS = ("model", *OTHERS.values())


@dataclass(frozen=True)
class Evaluation:
    """What evaluate.py left: results.json and the model's predictions."""

    results: dict[str, Any]
    predictions: list[Record]


@dataclass(frozen=True)
class Stage:
    """One step of the road, as the driver ran it."""

    name: str
    seconds: float
    command: str


@dataclass(frozen=True)
class Material:
    """All the report is made of; the scratch run and evaluation had no pre-training."""

    pretrain: Run
    finetune: Run
    scratch: Run
    evaluation: Evaluation
    scratch_evaluation: Evaluation
    documents: list[str]
    """What the model read of each, in the test set's order."""
    stages: list[Stage]


def read_evaluation(folder: Path, systems: Sequence[str]) -> Evaluation:
    """A complete evaluation of at least the given systems. Raises ValueError without one."""
    return Evaluation(read_results(folder, systems), Predictions(folder, "model").read())


def read_documents(folder: Path, evaluation: Evaluation) -> list[str]:
    """What the model read of each text, as the tokenizer gives it back.

    Raises ValueError where `folder` holds another set than was evaluated.
    """
    dataset, wanted = Dataset(folder), evaluation.results["settings"]["dataset"]["fingerprint"]
    if dataset.fingerprint != wanted:
        raise ValueError(
            f"--data {folder} (fingerprint {dataset.fingerprint}) is not the set that was "
            f"evaluated (fingerprint {wanted}); give the folder that evaluate.py had as --data"
        )
    read = evaluation.results["settings"]["decoding"]["source_length"]
    length = read if isinstance(read, int) else None
    examples = Examples(dataset, length, limit=len(evaluation.predictions))
    decode = examples.tokenizer.decode
    return [decode(examples[index].source.tolist()) for index in range(len(examples))]


def read_stages(path: Path) -> list[Stage]:
    """The stages in a JSON list of {name, seconds, command}. Raises ValueError on another form."""
    try:
        return [Stage(**stage) for stage in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is not a JSON list of {{name, seconds, command}}: {error}"
        ) from None


def write_report(material: Material, output: Path) -> None:
    """Write loss.png, rouge.png, report.html and report.md into `output`, in this order."""
    ours, theirs = material.evaluation.results, material.scratch_evaluation.results
    if ours["settings"]["dataset"] != theirs["settings"]["dataset"]:
        raise ValueError("the two evaluations are not of the same test set; evaluate both on one")
    systems = {
        "pre-trained": ours["systems"]["model"],
        "not pre-trained": theirs["systems"]["model"],
        **{label: ours["systems"][name] for label, name in OTHERS.items()},
    }
    output.mkdir(parents=True, exist_ok=True)
    finetuning = {"pre-trained": material.finetune, "not pre-trained": material.scratch}
    plots.plot_losses(
        {"Pre-training": {"pre-training": material.pretrain}, "Fine-tuning": finetuning},
        output / "loss.png",
    )
    plots.plot_rouge(systems, output / "rouge.png")
    write_page(sections(material, systems), output)


def sections(material: Material, systems: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    """The report in parts of Markdown; only the last one holds times."""
    results, records = material.evaluation.results, material.evaluation.predictions
    documents, drawn = material.documents, draw(len(records))
    use = _use(material.evaluation, documents)
    runs = {
        "pre-training": material.pretrain,
        "fine-tuning, pre-trained": material.finetune,
        "fine-tuning, not pre-trained": material.scratch,
    }
    return [
        "# LOCOST, the whole road in small",
        f"{TASK} A small LOCOST, pre-trained on gap sentences and fine-tuned for this task, is "
        f"scored on {len(records)} test documents.",
        "## One of them",
        *one_of_them(records[drawn[0]], documents[drawn[0]], use.own[drawn[0]]),
        "## Scores",
        rouge_table(systems, with_interval=True),
        difference_table(differences(material, systems)),
        source_use(use, drawn),
        explanation(results, records),
        "![Losses of pre-training and of fine-tuning](loss.png)",
        "![ROUGE of the five systems](rouge.png)",
        "## Losses",
        loss_table(runs),
        LOSS_NOTE,
        "## Ten summaries",
        "Chosen at random with a fixed seed, not by how they look. Marked in each summary: its "
        "words from this source that the exchanged document does not have; in the source: those "
        "of either summary.",
        *samples(material, drawn, use),
        "## Settings",
        settings_table({name: run.settings for name, run in runs.items()}),
        settings_table({"evaluation": shown_settings(results)}),
        "## Time",
        stage_table(material.stages),
    ]


def draw(count: int) -> list[int]:
    """Which of so many documents are shown, the same of each count."""
    return sorted(random.Random(SAMPLE_SEED).sample(range(count), min(SAMPLES, count)))


def _use(evaluation: Evaluation, documents: Sequence[str]) -> Use:
    summaries = [record["prediction"] for record in evaluation.predictions]
    return find_use(summaries, documents, derangement(len(documents)))


def one_of_them(record: Record, document: str, words: Words) -> list[str]:
    """A document, its reference and its summary, in which the words from it are seen at once."""
    return [
        _source(document, words),
        f"**Reference:** {escape(record['references'][0])}",
        f"**Summary:** {_prediction(record, words)}",
        "Marked: words of the summary that stand in its source and not in the document that is "
        "exchanged for it in *permuted*, without common words such as *the* and Python's keywords.",
    ]


def differences(
    material: Material, systems: Mapping[str, Mapping[str, Interval]]
) -> dict[str, Interval]:
    """Mean ROUGE of the pre-trained model minus that of each other system, paired."""
    minus = material.evaluation.results["model_minus"]
    found = {label: minus[OTHERS[label]]["mean_rouge"] for label in ("permuted", *TRIVIAL)}
    best = max(TRIVIAL, key=lambda label: systems[label]["mean_rouge"]["value"])
    found[f"the better lead ({best})"] = found[best]
    ours, theirs = (
        [record["scores"] for record in evaluation.predictions]
        for evaluation in (material.evaluation, material.scratch_evaluation)
    )
    return {**found, "not pre-trained": compare(ours, theirs)["mean_rouge"]}


def difference_table(found: Mapping[str, Interval]) -> str:
    """A row a system: the difference from it, and whether chance may have made it."""
    rows = [
        [
            label,
            f"{minus['value']:+.2f}",
            f"{minus['low']:+.2f} to {minus['high']:+.2f}",
            beside_chance(minus),
        ]
        for label, minus in found.items()
    ]
    header = ["pre-trained minus", "Mean ROUGE", "95 % interval", ""]
    return markdown_table(header, rows, align="lrrl")


def beside_chance(difference: Interval) -> str:
    """On which side of 0 the whole interval lies, if on one."""
    if difference["low"] > 0:
        return "beyond chance"
    return "below" if difference["high"] < 0 else "within chance"


def source_use(use: Use, drawn: Sequence[int]) -> str:
    """In how many summaries something of their own document is seen, and how many by chance."""
    shown = sum(bool(use.own[index]) for index in drawn)
    return (
        f"Of the ten summaries below {shown} have a content word that stands in their own source "
        f"and not in the exchanged one; of all {len(use.own)}, {share(use.own):.1f} %. By chance "
        "– the exchanged document's words in the same summaries – "
        f"{share(use.exchanged):.1f} %."
    )


def explanation(results: Mapping[str, Any], records: Sequence[Record]) -> str:
    """What the systems and the figures are."""
    sentences = results["settings"]["lead_sentences"]
    words = mean_words(text for record in records for text in record["references"])
    return (
        "ROUGE F1 in percent, with 95 % intervals; differences are paired, document by document. "
        "*Pre-trained* and *not pre-trained* are the same model fine-tuned from the pre-trained "
        "and from random weights; *lead* is the document's first "
        f"{'sentence' if sentences == 1 else f'{sentences} sentences'}; *lead words* its first "
        f"{words} words, as many as a reference has in the mean; *permuted* is the pre-trained, "
        "fine-tuned model given another document."
    )


def samples(material: Material, drawn: Sequence[int], use: Use) -> list[str]:
    """The drawn documents, each with its reference and what both models wrote."""
    scratch_use = _use(material.scratch_evaluation, material.documents)
    texts = []
    for number, index in enumerate(drawn, start=1):
        ours = material.evaluation.predictions[index]
        theirs = material.scratch_evaluation.predictions[index]
        words, their_words = use.own[index], scratch_use.own[index]
        texts.append(f"### {number}. {escape(ours['id'])}")
        texts.append(_source(material.documents[index], words | their_words))
        texts.append(f"**Reference:** {escape(ours['references'][0])}")
        for label, record, marked in (
            ("Pre-trained", ours, words),
            ("Not pre-trained", theirs, their_words),
        ):
            score = 100 * mean_rouge(record["scores"])
            texts.append(f"**{label}** (Mean ROUGE {score:.1f}): {_prediction(record, marked)}")
    return texts


def _source(document: str, words: Words) -> str:
    return f"**Source:** {mark(beginning(document, DOCUMENT_SHOWN), words)}"


def _prediction(record: Record, words: Words) -> str:
    return mark(record["prediction"], words) or "(nothing)"


def stage_table(stages: Sequence[Stage]) -> str:
    """Seconds of each stage and of all, with the command that runs it."""
    rows = [
        [stage.name, f"{stage.seconds:.1f}", f"<code>{escape(hide_paths(stage.command))}</code>"]
        for stage in stages
    ]
    rows.append(["all", f"{sum(stage.seconds for stage in stages):.1f}", ""])
    return markdown_table(["stage", "seconds", "command"], rows, align="lrl")
