"""The report of the whole chain: what each set scored beside the paper, how the runs went."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.evaluation import paper_comparison, paper_figures, plots
from pipeline.evaluation.bootstrap import Interval
from pipeline.evaluation.material import Material, ordered, title
from pipeline.evaluation.page import escape, write_page
from pipeline.evaluation.paper import MEAN, PaperSet, mean_column, paper
from pipeline.evaluation.results import shown_settings, verdict
from pipeline.evaluation.rouge import TYPES
from pipeline.evaluation.runs import LOSS_NOTE, cost, cost_table, loss_table
from pipeline.evaluation.tables import ROUGE_COLUMNS, markdown_table, settings_table


def write_report(material: Material, output: Path) -> None:
    """Write the pictures, report.html and report.md, whose being there says that all is."""
    output.mkdir(parents=True, exist_ok=True)
    if material.panels:
        plots.plot_losses(material.panels, output / "loss.png")
    if bars := _bars(material.locost):
        plots.plot_bars(bars, "Mean ROUGE on the test splits", output / "rouge.png")
    paper_figures.draw(material, output)
    write_page(list(_sections(material)), output)


def _bars(evaluation: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Interval]]:
    """Mean ROUGE of the paper's sets that are evaluated, ours and the paper's."""
    sets = [name for name in paper().sets if name in evaluation]
    if not sets:
        return {}
    theirs = {title(name): paper().sets[name].mean_rouge for name in sets}
    return {
        "ours": {title(name): mean_interval(name, evaluation[name]) for name in sets},
        "the paper": {
            name: Interval(value=value, low=value, high=value) for name, value in theirs.items()
        },
    }


def mean_interval(name: str, results: Mapping[str, Any]) -> Interval:
    """The model's Mean ROUGE on a set, of the types that the set's table in the paper has."""
    return results["systems"]["model"][mean_column(name)]


def _sections(material: Material) -> Iterator[str]:
    """The report in parts of Markdown."""
    evaluation = material.locost
    yield "# LOCOST, beside the paper"
    yield "## Scores"
    yield overview(evaluation)
    yield (
        "Mean ROUGE of the test documents, F1 in percent: the mean of ROUGE-1, ROUGE-2 and, as in "
        "the paper's tables, ROUGE-Lsum (arXiv, PubMed, BookSum-Chapter, other sets) or ROUGE-L "
        "(GovReport, SummScreenFD, BookSum-Book). Intervals are of 95 %, by bootstrap over "
        "documents; the paper states none."
    )
    if empty := [title(name) for name in paper().sets if name not in evaluation]:
        yield f"Not evaluated, hence empty: {', '.join(empty)}."
    if _bars(evaluation):
        yield "![Mean ROUGE of each set, ours and the paper's](rouge.png)"
    for name in ordered(evaluation):
        yield from _set_sections(name, evaluation[name])
    yield "## The paper's tables"
    yield from paper_comparison.tables(material)
    yield "## The paper's figures"
    yield from paper_figures.sections(material)
    yield "## Losses"
    if material.runs:
        yield loss_table(material.runs)
        yield LOSS_NOTE
        if going := [name for name, run in material.runs.items() if not run.finished]:
            yield f"Not finished: {', '.join(going)}."
        yield "![Losses of pre-training and of fine-tuning](loss.png)"
        yield "## Cost"
        theirs = paper().pretraining
        yield cost_table(
            {
                "the paper's pre-training": [
                    theirs.hours, theirs.gpu_hours, theirs.kwh, theirs.co2_kg,
                ],
                **{name: cost(run) for name, run in material.runs.items()},
            }
        )  # fmt: skip
        yield (
            "Steps and checkpoints; start-up, validation and work that was lost are not in it. A "
            "process has one GPU, where there are any. An empty cell was not recorded."
        )
    else:
        yield "No training run was given."
    labelled = dict(material.labelled())
    if material.runs or labelled:
        yield "## Settings"
    if material.runs:
        yield settings_table({name: run.settings for name, run in material.runs.items()})
    if labelled:
        yield settings_table({name: shown_settings(one.results) for name, one in labelled.items()})


def overview(evaluation: Mapping[str, dict[str, Any]]) -> str:
    """A row a set, those of the paper always: documents and Mean ROUGE, ours and the paper's."""
    rows = []
    for name in ordered({**paper().sets, **evaluation}):
        theirs, results = paper().sets.get(name), evaluation.get(name)
        ours = mean_interval(name, results) if results else None
        rows.append(
            [
                title(name),
                f"{results['examples']:,}" if results else "not evaluated",
                f"{theirs.documents:,}" if theirs else "",
                f"{ours['value']:.2f}" if ours else "",
                f"{ours['low']:.2f} to {ours['high']:.2f}" if ours else "",
                f"{theirs.mean_rouge:.2f}" if theirs else "",
                f"{ours['value'] - theirs.mean_rouge:+.2f}" if ours and theirs else "",
            ]
        )
    header = [
        "set", "documents", "the paper's", "Mean ROUGE", "interval", "the paper's", "difference",
    ]  # fmt: skip
    return markdown_table(header, rows, align="lrrrrrr")


def _set_sections(name: str, results: Mapping[str, Any]) -> Iterator[str]:
    """A set's own part: every type of ROUGE of every system, and what to know of them."""
    theirs, dataset = paper().sets.get(name), results["settings"]["dataset"]
    yield f"### {title(name)}"
    yield (
        f"{results['examples']:,} documents of {escape(dataset['name'])} "
        f"({escape(dataset['split'])})." + (f" {_papers_way(theirs)}" if theirs else "")
    )
    yield scores_table(name, results)
    if permuted := results["model_minus"].get("permuted"):
        yield verdict(permuted[mean_column(name)])
    if wordless := results["predictions_without_words"]["model"]:
        yield f"Summaries without an ASCII letter or digit, which score 0: {wordless:,}."


def _papers_way(theirs: PaperSet) -> str:
    source, target = theirs.lengths
    read = f"at most {source:,} tokens" if source else "whole texts"
    note = f" {theirs.note}" if theirs.note else ""
    return f"The paper reads {read} and writes at most {target:,}.{note}"


def scores_table(name: str, results: Mapping[str, Any]) -> str:
    """One row a system, with intervals, and the paper's LOCOST and the difference from it."""
    columns = [*TYPES, mean_column(name)]
    systems = dict(results["systems"])
    ours = systems.pop("model")
    rows = [["ours", *(_with_interval(ours[column]) for column in columns)]]
    if theirs := paper().sets.get(name):
        figures = {**theirs.scores, MEAN[theirs.last]: theirs.mean_rouge}
        printed = {column: f"{figure:.2f}" for column, figure in figures.items()}
        minus = {column: f"{ours[column]['value'] - figures[column]:+.2f}" for column in figures}
        rows.append(["the paper's LOCOST", *(printed.get(column, "") for column in columns)])
        rows.append(["difference", *(minus.get(column, "") for column in columns)])
    rows += [
        [system, *(_with_interval(scores[column]) for column in columns)]
        for system, scores in systems.items()
    ]
    return markdown_table(["system", *ROUGE_COLUMNS.values()], rows, align="lrrrrr")


def _with_interval(score: Interval) -> str:
    return f"{score['value']:.2f} ({score['low']:.2f} to {score['high']:.2f})"
