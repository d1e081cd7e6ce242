"""The demo's report: scores, losses, summaries, settings and times of a small run."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.common.html import escape, folded, markdown_table, write_page
from pipeline.evaluation.examples import Examples, mean_words
from pipeline.evaluation.systems import derangement
from pipeline.reporting import plots
from pipeline.reporting.evaluation_reader import (
    first_sentences,
    letters_line,
    read_results,
    shown_settings,
    verdicts,
)
from pipeline.reporting.marking import Use, Words, beginning, find_use, mark, share
from pipeline.reporting.run_reader import LOSS_NOTE, Run, loss_table
from pipeline.reporting.stage_times import StageTime, stage_table
from pipeline.reporting.tables import rouge_table, settings_table
from pipeline.scoring.bootstrap import Interval
from pipeline.scoring.predictions import Predictions, Record
from pipeline.scoring.rouge import compare, mean_rouge
from pipeline.shards import Dataset

TASK = (
    "The document is a Python function's source in words, its name first, without the first "
    "paragraph of its docstring; the summary is that paragraph, as its author wrote it."
)
SAMPLES, SAMPLE_SEED = 10, 0
DOCUMENT_SHOWN = 600  # characters of a document's beginning
OTHERS = {"lead": "lead", "lead words": "lead_words", "permuted": "permuted"}
"""evaluate.py's systems other than the model, by their names in the report."""
SYSTEMS = ("model", *OTHERS.values())


@dataclass(frozen=True)
class ModelEvaluation:
    """An evaluation's results.json and the model's predictions."""

    results: dict[str, Any]
    predictions: list[Record]


@dataclass(frozen=True)
class DemoInputs:
    """Everything the report shows; the scratch run and its evaluation had no pre-training."""

    pretrain: Run
    finetune: Run
    scratch: Run
    evaluation: ModelEvaluation
    scratch_evaluation: ModelEvaluation
    documents: list[str]
    """The model's input, as text, in the test set's order."""
    stages: list[StageTime]


def read_model_evaluation(folder: Path, systems: Sequence[str]) -> ModelEvaluation:
    """A complete evaluation; ValueError unless it has at least these systems."""
    return ModelEvaluation(read_results(folder, systems), Predictions(folder, "model").read())


def read_documents(folder: Path, evaluation: ModelEvaluation) -> list[str]:
    """The model's input for each document, decoded by the tokenizer.

    Raises ValueError where `folder` is not the dataset that was evaluated.
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


def write_report(inputs: DemoInputs, output: Path) -> None:
    """Write loss.png, rouge.png, report.html and report.md into `output`, in this order."""
    ours, theirs = inputs.evaluation.results, inputs.scratch_evaluation.results
    if ours["settings"]["dataset"] != theirs["settings"]["dataset"]:
        raise ValueError(
            "the two evaluations are of different test sets; evaluate both models on one set"
        )
    systems = {
        "pre-trained": ours["systems"]["model"],
        "not pre-trained": theirs["systems"]["model"],
        **{label: ours["systems"][name] for label, name in OTHERS.items()},
    }
    output.mkdir(parents=True, exist_ok=True)
    finetuning = {"pre-trained": inputs.finetune, "not pre-trained": inputs.scratch}
    plots.plot_losses(
        {"Pre-training": {"pre-training": inputs.pretrain}, "Fine-tuning": finetuning},
        output / "loss.png",
    )
    plots.plot_rouge(systems, output / "rouge.png")
    write_page(sections(inputs, systems), output)


def sections(inputs: DemoInputs, systems: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    """The report's sections, in Markdown; only the last one has times."""
    results, records = inputs.evaluation.results, inputs.evaluation.predictions
    documents, drawn = inputs.documents, draw(len(records))
    use = _use(inputs.evaluation, documents)
    runs = {
        "pre-training": inputs.pretrain,
        "fine-tuning, pre-trained": inputs.finetune,
        "fine-tuning, not pre-trained": inputs.scratch,
    }
    return [
        "# LOCOST in miniature, from text to scored summaries",
        f"{TASK} A small LOCOST, pre-trained on gap sentences and fine-tuned for this task, is "
        f"scored on {len(records)} test documents.",
        "## One document",
        *one_document(records[drawn[0]], documents[drawn[0]], use.own[drawn[0]]),
        "## Scores",
        rouge_table(systems),
        letters_line(results),
        difference_table(differences(inputs)),
        *verdicts(results, "mean_rouge"),
        source_use(use, drawn),
        explanation(results, records),
        "![Losses of pre-training and of fine-tuning](loss.png)",
        "![ROUGE of the five systems](rouge.png)",
        "## Losses",
        loss_table(runs),
        LOSS_NOTE,
        "## Ten summaries",
        "Drawn at random with a fixed seed. Marked in each summary: words that occur in this "
        "source and not in the permuted document; in the source: the marked words of either "
        "summary.",
        *samples(inputs, drawn, use),
        "## Settings",
        *folded(
            "Settings of the training runs",
            [settings_table({name: run.settings for name, run in runs.items()})],
        ),
        *folded(
            "Settings of the evaluation", [settings_table({"evaluation": shown_settings(results)})]
        ),
        "## Time",
        stage_table(inputs.stages),
    ]


def draw(count: int) -> list[int]:
    """Indices of the documents shown, the same for the same count."""
    return sorted(random.Random(SAMPLE_SEED).sample(range(count), min(SAMPLES, count)))


def _use(evaluation: ModelEvaluation, documents: Sequence[str]) -> Use:
    summaries = [record["prediction"] for record in evaluation.predictions]
    return find_use(summaries, documents, derangement(len(documents)))


def one_document(record: Record, document: str, words: Words) -> list[str]:
    """A document, its reference and its summary, with the words taken from it marked."""
    return [
        _source(document, words),
        f"**Reference:** {escape(record['references'][0])}",
        f"**Summary:** {_prediction(record, words)}",
        "Marked: words of the summary that occur in its source and not in the document that "
        "replaces it in *permuted*; common words such as *the* and Python's keywords are left out.",
    ]


def differences(inputs: DemoInputs) -> dict[str, Interval]:
    """Mean ROUGE of the pre-trained model minus each other system's, paired by document."""
    minus = inputs.evaluation.results["model_minus"]
    found = {
        label: minus[OTHERS[label]]["mean_rouge"] for label in ("permuted", "lead", "lead words")
    }
    ours, theirs = (
        [record["scores"] for record in evaluation.predictions]
        for evaluation in (inputs.evaluation, inputs.scratch_evaluation)
    )
    return {**found, "not pre-trained": compare(ours, theirs)["mean_rouge"]}


def difference_table(found: Mapping[str, Interval]) -> str:
    """A row a system: the difference, its interval, and what they say."""
    rows = [
        [
            label,
            f"{minus['value']:+.2f}",
            f"{minus['low']:+.2f} to {minus['high']:+.2f}",
            in_a_word(minus),
        ]
        for label, minus in found.items()
    ]
    header = ["pre-trained minus", "Mean ROUGE", "95 % interval", "the pre-trained model is"]
    return markdown_table(header, rows, align="lrrl")


def in_a_word(difference: Interval) -> str:
    """Better or worse, where the whole interval lies on one side of 0."""
    if difference["low"] > 0:
        return "better"
    return "worse" if difference["high"] < 0 else "equal, or the difference is chance"


def source_use(use: Use, drawn: Sequence[int]) -> str:
    """How many summaries use a word of their own document alone, and how many would by chance."""
    shown = sum(bool(use.own[index]) for index in drawn)
    return (
        f"Of the ten summaries below {shown} have a content word that occurs in their own source "
        f"and not in the permuted one; of all {len(use.own)}, {share(use.own):.1f} %. By chance "
        f"(words of the permuted document alone, in the same summaries): "
        f"{share(use.permuted):.1f} %."
    )


def explanation(results: Mapping[str, Any], records: Sequence[Record]) -> str:
    """The systems and the figures, explained."""
    words = mean_words(text for record in records for text in record["references"])
    lead = first_sentences(results["settings"]["lead_sentences"])
    return (
        "ROUGE F1 in percent, with 95 % intervals; differences are paired, document by document. "
        "*Pre-trained* and *not pre-trained* are the same model fine-tuned from the pre-trained "
        f"and from random weights; *lead* is {lead}; *lead words* its first {words} words, the "
        "mean length of a reference; *permuted* is the pre-trained, fine-tuned model given "
        "another document."
    )


def samples(inputs: DemoInputs, drawn: Sequence[int], use: Use) -> list[str]:
    """The drawn documents, each with its reference and both models' summaries."""
    scratch_use = _use(inputs.scratch_evaluation, inputs.documents)
    texts = []
    for number, index in enumerate(drawn, start=1):
        ours = inputs.evaluation.predictions[index]
        theirs = inputs.scratch_evaluation.predictions[index]
        words, their_words = use.own[index], scratch_use.own[index]
        texts.append(f"### {number}. {escape(ours['id'])}")
        texts.append(_source(inputs.documents[index], words | their_words))
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
