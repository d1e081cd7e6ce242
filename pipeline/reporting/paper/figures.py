"""The paper's seven figures with ours: their data, and their captions in the report."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pipeline.common.html import escape
from pipeline.reporting.equal_settings import kernel_words, recomputation_words
from pipeline.reporting.length_plot import Curve, plot_curves
from pipeline.reporting.measurements import MEMORIES, MODES, Measurements, extremes, figure
from pipeline.reporting.paper import kernels
from pipeline.reporting.paper.inputs import PaperInputs, system_title
from pipeline.reporting.paper.layer_diagram import plot_layer
from pipeline.reporting.paper.measurement_tables import memory_multiples
from pipeline.reporting.paper.plots import Circle, plot_circles, plot_contexts
from pipeline.reporting.paper.published import paper
from pipeline.reporting.paper.to_fill import to_fill
from pipeline.scoring.rouge import mean_column

CIRCLES, LAYER, MEMORY, CONTEXTS = "circles.png", "layer.png", "memory.png", "context.png"
BOOK = "booksum_book"


def draw(inputs: PaperInputs, output: Path) -> None:
    """Write the circles, the layer, and each other picture that has figures of ours."""
    plot_circles(circles(inputs), output / CIRCLES)
    plot_layer(output / LAYER)
    if inputs.kernels:
        kernels.draw_kernels(inputs.kernels, output)
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
    """The seven figures with their captions; for a missing one, the option that it needs."""
    for number, (name, caption) in enumerate(FIGURES.items(), start=1):
        yield f"### Figure {number}. {name}"
        yield from caption(inputs)
        yield from to_fill(f"figure {number}", inputs)


def _circles(inputs: PaperInputs) -> Iterator[str]:
    yield f"![Mean ROUGE against inference memory at 16K]({CIRCLES})"
    measured = inputs.measurements
    yield (
        "A circle's area is the memory of training. A system of ours needs an evaluation of the "
        f"set and measurements at 16K.{_circumstances(measured, ['plain']) if measured else ''}"
    )


def _layer(_: PaperInputs) -> Iterator[str]:
    yield f"![A block of the encoder]({LAYER})"
    yield "Only the convolution mixes positions; W are linear layers, × is elementwise."


def _some_kernels(inputs: PaperInputs) -> Iterator[str]:
    if not inputs.kernels:
        yield kernels.MISSING
        return
    yield f"![Kernels of the first dimension in some layers]({kernels.SOME})"
    yield "Over the lags that hold 99 % of |kernel|; each panel has its own scale."


def _memory(inputs: PaperInputs) -> Iterator[str]:
    if not inputs.measurements:
        yield "Not given: --systems FILE of benchmark.py systems."
        return
    yield f"![Peak memory against the length]({MEMORY})"
    yield (
        "Peak above the built model; dashed: with every memory saving a system has; a cross above "
        "the curves: did not fit; bars: least to most of the runs."
        f"{_circumstances(inputs.measurements, MEMORIES)}"
    )


def _contexts(inputs: PaperInputs) -> Iterator[str]:
    if not inputs.contexts:
        yield "Not given: --context TOKENS=FOLDER."
        return
    yield f"![Mean ROUGE of BookSum-Book against the training context]({CONTEXTS})"
    yield (
        "Whole books, with 95 % intervals; dotted: the paper's table, as it does not give its "
        "curve in figures."
    )


def _all_kernels(inputs: PaperInputs) -> Iterator[str]:
    if not inputs.kernels:
        yield kernels.MISSING
        return
    yield f"![Kernels of the first dimension in all layers]({kernels.ALL})"


def _images(inputs: PaperInputs) -> Iterator[str]:
    if not inputs.kernels:
        yield kernels.MISSING
        return
    yield from kernels.images_of(inputs.kernels)


FIGURES: dict[str, Callable[[PaperInputs], Iterator[str]]] = {
    "Mean ROUGE and memory": _circles,
    "A layer": _layer,
    "Kernels of some layers": _some_kernels,
    "Memory against length": _memory,
    "Whole books by training context": _contexts,
    "Kernels of all layers": _all_kernels,
    "|Kernel| of all dimensions": _images,
}
"""The paper's seven figures: title, and function that writes the picture's place and caption."""


def _circumstances(measured: Measurements, memories: Iterable[str]) -> str:
    """Device, precision, recomputation and kernels of what a figure shows, for its caption."""
    shown = [memory for memory in memories if measured.those(memory)]
    again = (f"{memory}: {recomputation_words(measured.those(memory))}" for memory in shown)
    equal: dict[str, list[str]] = {}
    for system in measured.systems:
        rows = [row for memory in shown for row in measured.those(memory, system)]
        if words := kernel_words(rows):
            equal.setdefault(words, []).append(system_title(system))
    kernels = (f"{', '.join(names)}: {escape(words)}" for words, names in equal.items())
    return f" {escape(measured.settings)}; {'; '.join(again)}. Kernels: {'; '.join(kernels)}."


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
                ran = {length: row for length, row in rows if figure(row, "peak_gib")}
                points = [(length, row["peak_gib"]) for length, row in ran.items()]
                spreads = [extremes(row, "peak_gib") for row in ran.values()]
                crosses = [length for length, row in rows if "cross" in row]
                if points or crosses:
                    saving = memory == "saving"
                    name = f"{system_title(system)}{', saving' if saving else ''}"
                    curve = Curve(points, crosses, rank, dashed=saving, spreads=spreads)
                    panels.setdefault(mode, {})[name] = curve
    return panels
