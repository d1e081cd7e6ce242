"""The report of a small run: what it scored, how it learned, what it writes, what it took."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.evaluation import plots
from pipeline.evaluation.bootstrap import Interval
from pipeline.evaluation.page import escape, hide_paths, write_page
from pipeline.evaluation.predictions import DOCUMENT_START, Predictions, Record
from pipeline.evaluation.results import read_results, shown_settings, verdict
from pipeline.evaluation.rouge import compare, mean_rouge
from pipeline.evaluation.runs import LOSS_NOTE, Run, loss_table
from pipeline.evaluation.tables import markdown_table, rouge_table, settings_table, signed

SAMPLES, SAMPLE_SEED = 10, 0


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
    stages: list[Stage]


def read_evaluation(folder: Path, systems: Sequence[str]) -> Evaluation:
    """A complete evaluation of at least the given systems. Raises ValueError without one."""
    return Evaluation(read_results(folder, systems), Predictions(folder, "model").read())


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
        "lead": ours["systems"]["lead"],
        "permuted": ours["systems"]["permuted"],
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
    results = material.evaluation.results
    dataset, lead_sentences = results["settings"]["dataset"], results["settings"]["lead_sentences"]
    runs = {
        "pre-training": material.pretrain,
        "fine-tuning, pre-trained": material.finetune,
        "fine-tuning, not pre-trained": material.scratch,
    }
    return [
        "# LOCOST, the whole road in small",
        "A small LOCOST, pre-trained to restore the gap sentences of documents, then fine-tuned to "
        f"summarise, scored on the {dataset['examples']} documents of "
        f"{escape(dataset['name'])} ({escape(dataset['split'])}).",
        "## Scores",
        rouge_table(systems),
        "ROUGE F1 in percent. *pre-trained* and *not pre-trained* are the same model fine-tuned "
        "from the pre-trained and from random weights; *lead* is the document's first "
        f"{'sentence' if lead_sentences == 1 else f'{lead_sentences} sentences'}; *permuted* is "
        "the pre-trained, fine-tuned model given another document.",
        findings(material),
        "![ROUGE of the four systems](rouge.png)",
        "## Losses",
        loss_table(runs),
        LOSS_NOTE,
        "![Losses of pre-training and of fine-tuning](loss.png)",
        "## Ten summaries",
        "Chosen at random with a fixed seed, not by how they look.",
        *samples(material),
        "## Settings",
        settings_table({name: run.settings for name, run in runs.items()}),
        settings_table({"evaluation": shown_settings(results)}),
        "## Time",
        stage_table(material.stages),
    ]


def findings(material: Material) -> str:
    """Whether the input matters, and whether pre-training does, with paired intervals."""
    permuted = material.evaluation.results["model_minus"]["permuted"]["mean_rouge"]
    ours = [record["scores"] for record in material.evaluation.predictions]
    theirs = [record["scores"] for record in material.scratch_evaluation.predictions]
    pretraining = compare(ours, theirs)["mean_rouge"]
    return (
        f"{verdict(permuted)} Pre-training changes Mean ROUGE by {signed(pretraining)}. "
        "Intervals are paired, document by document."
    )


def samples(material: Material) -> list[str]:
    """Documents drawn with a seed, each with its reference and what both models wrote."""
    pairs = list(
        zip(material.evaluation.predictions, material.scratch_evaluation.predictions, strict=True)
    )
    chosen = sorted(random.Random(SAMPLE_SEED).sample(range(len(pairs)), min(SAMPLES, len(pairs))))
    texts = []
    for number, (ours, theirs) in enumerate((pairs[index] for index in chosen), start=1):
        texts.append(f"### {number}. {escape(ours['id'])}")
        more = " …" if len(ours["document"]) == DOCUMENT_START else ""
        texts.append(f"**Document:** {escape(ours['document'])}{more}")
        texts.append(f"**Reference:** {escape(ours['references'][0])}")
        for label, record in (("Pre-trained", ours), ("Not pre-trained", theirs)):
            score = 100 * mean_rouge(record["scores"])
            prediction = escape(record["prediction"]) or "(nothing)"
            texts.append(f"**{label}** (Mean ROUGE {score:.1f}): {prediction}")
    return texts


def stage_table(stages: Sequence[Stage]) -> str:
    """Seconds of each stage and of all, with the command that runs it."""
    rows = [
        [stage.name, f"{stage.seconds:.1f}", f"<code>{escape(hide_paths(stage.command))}</code>"]
        for stage in stages
    ]
    rows.append(["all", f"{sum(stage.seconds for stage in stages):.1f}", ""])
    return markdown_table(["stage", "seconds", "command"], rows, align="lrl")
