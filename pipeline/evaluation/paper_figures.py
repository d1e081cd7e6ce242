"""What goes into the paper's figures, and what the page says of them."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.evaluation.material import Material, Measurements, figure, system_title
from pipeline.evaluation.paper import mean_column, paper
from pipeline.evaluation.paper_measurements import MEMORIES, MODES, memory_multiples
from pipeline.evaluation.paper_plots import (
    Circle,
    Curve,
    plot_circles,
    plot_contexts,
    plot_memory,
)

CIRCLES, MEMORY, CONTEXTS = "circles.png", "memory.png", "context.png"
BOOK = "booksum_book"


def draw(material: Material, output: Path) -> None:
    """Write those pictures into `output` for which there is something of ours, and the first."""
    plot_circles(circles(material), output / CIRCLES)
    if material.measurements:
        plot_memory(curves(material.measurements), output / MEMORY)
    if material.contexts:
        sweeps = {
            system_title(system): {
                tokens: one.results["systems"]["model"][mean_column(BOOK)]
                for tokens, one in sweep.items()
            }
            for system, sweep in material.contexts.items()
        }
        rows = paper().sets[BOOK].rows
        published = {
            system_title(system): rows[system].mean_rouge
            for system in material.contexts
            if system in rows
        }
        plot_contexts(sweeps, published, output / CONTEXTS)


def sections(material: Material) -> Iterator[str]:
    """The pictures with a line each; of those that are empty, what they need."""
    yield (
        f"![Mean ROUGE against inference memory at 16K]({CIRCLES})\n\nMean ROUGE against the "
        "memory of inference at 16K tokens; the area of a circle is the memory of training. A "
        "system of ours needs an evaluation of the set and measurements at 16K."
    )
    if material.measurements:
        yield (
            f"![Peak memory against the length]({MEMORY})\n\nPeak memory over the built model, "
            "batch 1; dashed with every saving of memory a system has, a cross where it did not "
            "fit."
        )
    else:
        yield "Memory against the length is empty: give --systems."
    if material.contexts:
        yield (
            f"![Mean ROUGE of BookSum-Book against the training context]({CONTEXTS})\n\nMean ROUGE "
            "of whole books against the length trained on, with 95 % intervals; the paper's curve "
            "is not in figures, the dotted line is its table."
        )
    else:
        yield "BookSum-Book against the training context is empty: give --context."


def circles(material: Material) -> dict[str, tuple[dict[str, Circle], dict[str, Circle]]]:
    """The paper's and our systems on the two sets of SCROLLS, by the sets' titles."""
    multiples = memory_multiples(material.measurements, "plain")
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
            for system, one in material.evaluations.get(name, {}).items()
            if system in multiples["inference"]
        }
        panels[paper().sets[name].title] = (theirs, ours)
    return panels


def curves(measured: Measurements) -> dict[str, dict[str, Curve]]:
    """By mode, each system's memory plain, and with its savings where that was measured."""
    panels: dict[str, dict[str, Curve]] = {mode: {} for mode in MODES}
    for mode, panel in panels.items():
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
                    panel[name] = Curve(points, crosses, rank, dashed=saving)
    return panels
