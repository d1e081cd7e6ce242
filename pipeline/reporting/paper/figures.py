"""Data of the paper's figures, and their captions in the report."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.reporting.length_plot import Curve, plot_curves
from pipeline.reporting.measurements import Measurements, figure
from pipeline.reporting.paper.inputs import PaperInputs, system_title
from pipeline.reporting.paper.measurement_tables import MEMORIES, MODES, memory_multiples
from pipeline.reporting.paper.plots import Circle, plot_circles, plot_contexts
from pipeline.reporting.paper.published import paper
from pipeline.scoring.rouge import mean_column

CIRCLES, MEMORY, CONTEXTS = "circles.png", "memory.png", "context.png"
BOOK = "booksum_book"


def draw(inputs: PaperInputs, output: Path) -> None:
    """Write the circles, and each other picture that has figures of ours, into `output`."""
    plot_circles(circles(inputs), output / CIRCLES)
    if inputs.measurements:
        plot_memory(inputs.measurements, output / MEMORY)
    if inputs.contexts:
        sweeps = {
            system_title(system): {
                tokens: one.results["systems"]["model"][mean_column(BOOK)]
                for tokens, one in sweep.items()
            }
            for system, sweep in inputs.contexts.items()
        }
        rows = paper().sets[BOOK].rows
        published = {
            system_title(system): rows[system].mean_rouge
            for system in inputs.contexts
            if system in rows
        }
        plot_contexts(sweeps, published, output / CONTEXTS)


def sections(inputs: PaperInputs) -> Iterator[str]:
    """The pictures with their captions; for a missing one, the option that it needs."""
    yield (
        f"![Mean ROUGE against inference memory at 16K]({CIRCLES})\n\nMean ROUGE against the "
        "memory of inference at 16K tokens; a circle's area is the memory of training. A system "
        "of ours needs an evaluation of the set and measurements at 16K."
    )
    if inputs.measurements:
        yield (
            f"![Peak memory against the length]({MEMORY})\n\nPeak memory above the built model, "
            "batch 1; dashed: with every memory saving a system has; a cross: did not fit."
        )
    else:
        yield "No figure of memory against the length: give --systems."
    if inputs.contexts:
        yield (
            f"![Mean ROUGE of BookSum-Book against the training context]({CONTEXTS})\n\nMean ROUGE "
            "of whole books against the length trained on, with 95 % intervals; the dotted line is "
            "from the paper's table, which does not give its curve in figures."
        )
    else:
        yield "No figure of BookSum-Book against the training context: give --context."


def circles(inputs: PaperInputs) -> dict[str, tuple[dict[str, Circle], dict[str, Circle]]]:
    """The paper's systems and ours on the two SCROLLS sets, by the sets' titles."""
    multiples = memory_multiples(inputs.measurements, "plain")
    panels = {}
    for name in ("summscreenfd", "govreport"):
        theirs = {
            system_title(system): Circle(inference, training, row.mean_rouge)
            for system, row in paper().sets[name].rows.items()
            for _, training, inference in [paper().scrolls[system]]
            if inference is not None
        }
        ours = {
            system_title(system): Circle(
                multiples["inference"][system],
                multiples["training"].get(system),
                one.results["systems"]["model"][mean_column(name)]["value"],
            )
            for system, one in inputs.evaluations.get(name, {}).items()
            if system in multiples["inference"]
        }
        panels[paper().sets[name].title] = (theirs, ours)
    return panels


def plot_memory(measured: Measurements, path: Path) -> None:
    """Write a PNG of peak memory against the length (the paper's figure 4), a panel a mode."""
    plot_curves(memory_curves(measured), path, "peak above the built model, GiB")


def memory_curves(measured: Measurements) -> dict[str, dict[str, Curve]]:
    """By mode measured: each system's memory, plain and (dashed) with its savings."""
    panels: dict[str, dict[str, Curve]] = {}
    for mode in MODES:
        for memory in MEMORIES:
            for rank, system in enumerate(measured.systems):
                rows = sorted(measured.find(system, mode, memory).items())
                points = [
                    (length, value) for length, row in rows if (value := figure(row, "peak_gib"))
                ]
                crosses = [length for length, row in rows if "cross" in row]
                if points or crosses:
                    saving = memory == "saving"
                    name = f"{system_title(system)}{', saving' if saving else ''}"
                    curve = Curve(points, crosses, rank, dashed=saving)
                    panels.setdefault(mode, {})[name] = curve
    return panels
