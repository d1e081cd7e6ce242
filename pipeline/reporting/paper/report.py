"""The paper's report: scores next to the paper's, its tables and figures, losses and cost."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.common.html import escape, folded, markdown_table, write_page
from pipeline.reporting import plots, source_use
from pipeline.reporting.evaluation_reader import letters_line, shown_settings, verdicts
from pipeline.reporting.paper import figures as paper_figures
from pipeline.reporting.paper import measurement_tables, score_tables, setting_tables
from pipeline.reporting.paper.comparison_table import LEGEND
from pipeline.reporting.paper.inputs import PaperInputs, ordered, title
from pipeline.reporting.paper.published import PaperSet, paper
from pipeline.reporting.paper.to_fill import to_fill
from pipeline.reporting.run_reader import LOSS_NOTE, cost, cost_table, loss_table
from pipeline.reporting.tables import ROUGE_COLUMNS, settings_table
from pipeline.scoring.bootstrap import Interval, ranged
from pipeline.scoring.rouge import MEAN_COLUMNS, TYPES, mean_column

TABLES: dict[str, Callable[[PaperInputs], Iterator[str]]] = {
    "Complexity": measurement_tables.complexity,
    "arXiv, PubMed and BookSum-Chapter": score_tables.summarisation,
    "SCROLLS": score_tables.scrolls,
    "Throughput": measurement_tables.throughput,
    "BookSum-Book": score_tables.books,
    "Extrapolation": score_tables.extrapolation,
    "Judge": score_tables.judge,
    "Datasets": setting_tables.datasets,
    "Hyperparameters": setting_tables.hyperparameters,
}
"""The paper's nine tables, each with our figures below: title, and function that writes it."""


def write_report(inputs: PaperInputs, output: Path) -> None:
    """Write the pictures, report.html and, last, report.md, whose presence means completeness."""
    output.mkdir(parents=True, exist_ok=True)
    if inputs.panels:
        plots.plot_losses(inputs.panels, output / "loss.png")
    if bars := _bars(inputs.locost):
        plots.plot_bars(bars, "Mean ROUGE on the test splits", output / "rouge.png")
    paper_figures.draw(inputs, output)
    if reading := inputs.source_use():
        source_use.plot_rises(reading, output / source_use.FIGURE)
    write_page(list(_sections(inputs)), output)


def _bars(evaluation: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Interval]]:
    """Mean ROUGE of the evaluated sets that the paper has, ours and the paper's."""
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
    """The model's Mean ROUGE on a set, over the ROUGE types of the set's table in the paper."""
    return results["systems"]["model"][mean_column(name)]


def _sections(inputs: PaperInputs) -> Iterator[str]:
    """The report's sections, in Markdown."""
    evaluation = inputs.locost
    yield "# LOCOST compared with the paper"
    if inputs.missing:
        names = ", ".join(escape(name) for name in inputs.missing)
        yield (
            f"**Missing: {names}.** They failed, were stopped, or have not run; "
            "`bash slurm/chain.sh status` says why, and `bash slurm/chain.sh` resumes them."
        )
    yield "## Scores"
    if evaluation:
        yield overview(evaluation)
    else:
        yield from folded("No set evaluated yet; needs --evaluation SET=FOLDER", [overview({})])
    yield (
        "Mean ROUGE of the test documents, F1 in percent: the mean of ROUGE-1, ROUGE-2 and, as in "
        "the paper's tables, ROUGE-Lsum (arXiv, PubMed, BookSum-Chapter, other sets) or ROUGE-L "
        "(GovReport, SummScreenFD, BookSum-Book). Intervals: 95 %, by bootstrap over documents; "
        "the paper gives none."
    )
    empty = [title(name) for name in paper().sets if name not in evaluation]
    if empty and evaluation:
        yield f"Not evaluated: {', '.join(empty)}."
    if _bars(evaluation):
        yield "![Mean ROUGE of each set, ours and the paper's](rouge.png)"
    for name in ordered(evaluation):
        yield from _set_sections(name, evaluation[name])
    yield "## The paper's tables"
    yield LEGEND
    for number, (name, table) in enumerate(TABLES.items(), start=1):
        yield f"### {number}. {name}"
        yield from table(inputs)
        yield from to_fill(f"table {number}", inputs)
    yield "## The paper's figures"
    yield from paper_figures.sections(inputs)
    yield from source_use.sections(inputs.source_use())
    yield "## Losses"
    if inputs.runs:
        yield loss_table(inputs.runs)
        yield LOSS_NOTE
        if unfinished := [name for name, run in inputs.runs.items() if not run.finished]:
            yield f"Not finished: {', '.join(unfinished)}."
        yield "![Losses of pre-training and of fine-tuning](loss.png)"
        yield "## Cost"
        theirs = paper().pretraining
        yield cost_table(
            {
                "the paper's pre-training": [
                    theirs.hours, theirs.gpu_hours, theirs.kwh, theirs.co2_kg,
                ],
                **{name: cost(run) for name, run in inputs.runs.items()},
            }
        )  # fmt: skip
        yield (
            "Time of steps and checkpoints; start-up, validation and lost steps are not counted. A "
            "process has one GPU, if any. An empty cell was not recorded."
        )
    else:
        yield "No training run was given."
    labelled = dict(inputs.labelled())
    if inputs.runs or labelled:
        yield "## Settings"
    if inputs.runs:
        trained = {name: run.settings for name, run in inputs.runs.items()}
        yield from folded("Settings of the training runs", [settings_table(trained)])
    if labelled:
        evaluated = {name: shown_settings(one.results) for name, one in labelled.items()}
        yield from folded("Settings of the evaluations", [settings_table(evaluated)])


def overview(evaluation: Mapping[str, dict[str, Any]]) -> str:
    """A row a set, with all of the paper's: documents and Mean ROUGE, ours and the paper's."""
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
        "set", "documents", "the paper's", "Mean ROUGE", "interval", "the paper's mean",
        "difference",
    ]  # fmt: skip
    return markdown_table(header, rows, align="lrrrrrr")


def _set_sections(name: str, results: Mapping[str, Any]) -> Iterator[str]:
    """A set's section: every ROUGE type of every system, with notes."""
    theirs, dataset = paper().sets.get(name), results["settings"]["dataset"]
    yield f"### {title(name)}"
    yield (
        f"{results['examples']:,} documents of {escape(dataset['name'])} "
        f"({escape(dataset['split'])})." + (f" {_papers_lengths(theirs)}" if theirs else "")
    )
    yield scores_table(name, results)
    yield letters_line(results)
    yield from verdicts(results, mean_column(name))
    if wordless := results["predictions_without_words"]["model"]:
        yield f"Summaries without an ASCII letter or digit, which score 0: {wordless:,}."


def _papers_lengths(theirs: PaperSet) -> str:
    source, target = theirs.lengths
    read = f"at most {source:,} tokens" if source else "whole texts"
    note = f" {theirs.note}" if theirs.note else ""
    return f"The paper reads {read} and writes at most {target:,}.{note}"


def scores_table(name: str, results: Mapping[str, Any]) -> str:
    """One row a system, with intervals, the paper's LOCOST and the difference from it."""
    columns = [*TYPES, mean_column(name)]
    systems = dict(results["systems"])
    ours = systems.pop("model")
    rows = [["ours", *(ranged(ours[column]) for column in columns)]]
    if theirs := paper().sets.get(name):
        figures = {**theirs.scores, MEAN_COLUMNS[theirs.last]: theirs.mean_rouge}
        printed = {column: f"{figure:.2f}" for column, figure in figures.items()}
        minus = {column: f"{ours[column]['value'] - figures[column]:+.2f}" for column in figures}
        rows.append(["the paper's LOCOST", *(printed.get(column, "") for column in columns)])
        rows.append(["difference", *(minus.get(column, "") for column in columns)])
    rows += [
        [system, *(ranged(scores[column]) for column in columns)]
        for system, scores in systems.items()
    ]
    return markdown_table(["system", *ROUGE_COLUMNS.values()], rows, align="lrrrrr")
