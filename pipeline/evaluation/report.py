"""The report of a small run: what it scored, how it learned, what it writes, what it took."""

import base64
import html
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import markdown
import yaml

from pipeline.evaluation import plots
from pipeline.evaluation.predictions import DOCUMENT_START, Predictions, Record
from pipeline.evaluation.rouge import Interval, compare, mean_rouge
from pipeline.evaluation.tables import flatten, markdown_table, rouge_table, signed
from pipeline.files import replace_text

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, SAMPLE_SEED = 10, 0
LAST_SHARE = 20  # the last loss of a run is the mean over its last twentieth
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }}
h1, h2, h3 {{ line-height: 1.25; }}
h2 {{ margin-top: 2.5rem; border-bottom: 1px solid #ddd; padding-bottom: .3rem; }}
h3 {{ font-size: 1rem; margin-top: 1.8rem; }}
img {{ max-width: 100%; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }}
th, td {{ padding: .35rem .8rem; border-bottom: 1px solid #e3e3e3; }}
th {{ border-bottom: 2px solid #999; }}
code {{ font-size: .88em; background: #f4f5f7; padding: .1em .3em; border-radius: 3px;
        overflow-wrap: anywhere; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


@dataclass(frozen=True)
class Run:
    """A training run: its settings by dotted name, its metrics line by line."""

    settings: dict[str, Any]
    metrics: list[dict[str, Any]]


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


def read_run(folder: Path) -> Run:
    """A run folder's config.yaml and metrics.jsonl. Raises ValueError when it has no losses."""
    settings = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    read = [json.loads(line) for line in lines]
    # null stands where an update was skipped: a gap in the curve
    metrics = [{k: value for k, value in line.items() if value is not None} for line in read]
    if not any("loss" in line for line in metrics):
        raise ValueError(f"{folder / 'metrics.jsonl'} holds no loss; train the run first")
    return Run(flatten(settings), metrics)


def read_evaluation(folder: Path, systems: Sequence[str]) -> Evaluation:
    """A complete evaluation of at least the given systems. Raises ValueError without one."""
    path = folder / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"systems": {}}
    missing = [system for system in systems if system not in results["systems"]]
    if missing:
        raise ValueError(
            f"{folder} has no results of {', '.join(missing)}; run `python pipeline/evaluate.py "
            f"--output {folder}` with them in --systems"
        )
    return Evaluation(results, Predictions(folder, "model").read())


def read_stages(path: Path) -> list[Stage]:
    """The stages in a JSON list of {name, seconds, command}. Raises ValueError on another form."""
    try:
        return [Stage(**stage) for stage in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is not a JSON list of {{name, seconds, command}}: {error}"
        ) from None


def write_report(material: Material, output: Path) -> None:
    """Write loss.png, rouge.png, report.md and report.html into `output`, in this order."""
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
    finetuning = {
        "pre-trained": material.finetune.metrics,
        "not pre-trained": material.scratch.metrics,
    }
    plots.plot_losses(material.pretrain.metrics, finetuning, output / "loss.png")
    plots.plot_rouge(systems, output / "rouge.png")
    text = render(material, systems)
    replace_text(output / "report.md", text)
    replace_text(output / "report.html", to_html(text, output))


def render(material: Material, systems: Mapping[str, Mapping[str, Interval]]) -> str:
    """The report as Markdown; only its last section holds times."""
    results = material.evaluation.results
    dataset, lead_sentences = results["settings"]["dataset"], results["settings"]["lead_sentences"]
    runs = {
        "pre-training": material.pretrain,
        "fine-tuning, pre-trained": material.finetune,
        "fine-tuning, not pre-trained": material.scratch,
    }
    evaluation = {
        name: value
        for name, value in flatten(results["settings"]).items()
        if not name.endswith(("sha256", "fingerprint"))
    }
    sections = [
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
        f"Nats a target token; the last training loss is the mean over the last {LAST_SHARE}th of "
        "the steps, Mean ROUGE is in percent.",
        "![Losses of pre-training and of fine-tuning](loss.png)",
        "## Ten summaries",
        "Chosen at random with a fixed seed, not by how they look.",
        *samples(material),
        "## Settings",
        settings_table({name: run.settings for name, run in runs.items()}),
        settings_table({"evaluation": evaluation}),
        "## Time",
        stage_table(material.stages),
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def findings(material: Material) -> str:
    """Whether the input matters, and whether pre-training does, with paired intervals."""
    permuted = material.evaluation.results["model_minus"]["permuted"]["mean_rouge"]
    ours = [record["scores"] for record in material.evaluation.predictions]
    theirs = [record["scores"] for record in material.scratch_evaluation.predictions]
    pretraining = compare(ours, theirs)["mean_rouge"]
    if permuted["low"] > 0:
        verdict = "The true document scores above the permuted one"
    elif permuted["value"] > 0:
        verdict = "The true document scores above the permuted one, but within chance"
    else:
        verdict = (
            "The true document does **not** score above the permuted one, so the model ignores "
            "its input, a fault to find"
        )
    return (
        f"{verdict}: Mean ROUGE {signed(permuted)}. Pre-training changes Mean ROUGE by "
        f"{signed(pretraining)}. Intervals are paired, document by document."
    )


def loss_table(runs: Mapping[str, Run]) -> str:
    """First and last losses of each run, and its best validation."""
    header = ["run", "steps", "first loss", "last loss", "best validation loss"]
    rows = []
    for name, run in runs.items():
        steps, losses = plots.series(run.metrics, "loss")
        last = losses[-max(1, len(losses) // LAST_SHARE) :]
        _, validation = plots.series(run.metrics, "validation_loss")
        _, rouge = plots.series(run.metrics, "validation_mean_rouge")
        rows.append(
            [
                name,
                str(steps[-1]),
                f"{losses[0]:.3f}",
                f"{sum(last) / len(last):.3f}",
                f"{min(validation):.3f}" if validation else "",
                f"{100 * max(rouge):.2f}" if rouge else "",
            ]
        )
    return markdown_table([*header, "best validation Mean ROUGE"], rows, align="lrrrrr")


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


def settings_table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a setting, one column a run."""
    names = dict.fromkeys(name for settings in columns.values() for name in settings)
    rows = [
        [f"`{name}`", *(_shown(settings.get(name)) for settings in columns.values())]
        for name in names
    ]
    return markdown_table(["setting", *columns], rows, align="l" * (1 + len(columns)))


def stage_table(stages: Sequence[Stage]) -> str:
    """Seconds of each stage and of all, with the command that runs it."""
    rows = [
        [stage.name, f"{stage.seconds:.1f}", f"<code>{escape(hide_paths(stage.command))}</code>"]
        for stage in stages
    ]
    rows.append(["all", f"{sum(stage.seconds for stage in stages):.1f}", ""])
    return markdown_table(["stage", "seconds", "command"], rows, align="lrl")


def escape(text: str) -> str:
    """Any text on one line, its Markdown and HTML signs made to stand for themselves."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]#])", r"\\\1", plain).replace("|", "&#124;").replace("~", "&#126;")


def hide_paths(text: str) -> str:
    """Absolute paths made relative to the repository, or cut to their last part outside it."""

    def shorten(match: re.Match[str]) -> str:
        path = Path(match.group())
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name

    return re.sub(r"(?<![\w.~/-])(?:/[^\s/'\":,]+)+", shorten, text)


def to_html(text: str, folder: Path) -> str:
    """The Markdown as one page that needs no other file: its pictures, from `folder`, inside."""
    body = markdown.markdown(text, extensions=["tables"])

    def embed(match: re.Match[str]) -> str:
        data = base64.b64encode((folder / match.group(1)).read_bytes()).decode()
        return f'src="data:image/png;base64,{data}"'

    title = html.escape(text.splitlines()[0].lstrip("# "))
    return PAGE.format(title=title, body=re.sub(r'src="([^"/]+\.png)"', embed, body))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return hide_paths(value) if isinstance(value, str) else json.dumps(value)
