"""Pictures of scores against memory and against the training context."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.common.plot_style import BOTH_AXES, colour, save
from pipeline.reporting.length_plot import length_axis
from pipeline.scoring.bootstrap import Interval

AREA = 120.0  # square points of the circle of the smallest training memory


@dataclass(frozen=True)
class Circle:
    """A system: inference and training memory as multiples of the smallest, and Mean ROUGE.

    `training` None: it does not fit.
    """

    inference: float
    training: float | None
    rouge: float


def plot_circles(
    panels: Mapping[str, tuple[Mapping[str, Circle], Mapping[str, Circle]]], path: Path
) -> None:
    """Mean ROUGE against inference memory at 16K, the area of a circle its training memory.

    A panel a set: the paper's systems (hollow) and ours (filled), by name.
    """
    with matplotlib.rc_context(BOTH_AXES):
        figure = Figure(figsize=(7.5, 3.6 * len(panels) + 0.4), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        names = list(dict.fromkeys(n for pair in panels.values() for some in pair for n in some))
        colours = {name: colour(rank) for rank, name in enumerate(names)}
        for panel, (title, pair) in zip(axes, panels.items(), strict=True):
            for circles, filled in zip(pair, (False, True), strict=True):
                for name, circle in circles.items():
                    _draw_circle(panel, name, circle, colours[name], filled)
            panel.set_title(title)
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
            panel.set_xlabel("inference memory at 16K, × the smallest")
            panel.set_ylabel("Mean ROUGE")
            panel.margins(0.18)
        legend = "hollow: the paper, filled: ours; area: training memory, a cross: did not fit"
        figure.supxlabel(legend, fontsize=9)
        save(figure, path)


def _draw_circle(axes: Axes, name: str, circle: Circle, own: str, filled: bool) -> None:
    fits = circle.training is not None
    area = AREA * (circle.training or 1)
    style = {"facecolors": own if filled else "none", "edgecolors": own, "alpha": 0.8}
    axes.scatter(
        [circle.inference],
        [circle.rouge],
        s=area,
        marker="o" if fits else "x",
        linewidths=1.5,
        **(style if fits else {"color": own}),
    )
    beside = area**0.5 / 2 + 4
    # Ours to the left, so that near circles' names do not meet.
    axes.annotate(name, (circle.inference, circle.rouge), (-beside if filled else beside, 0),
                  textcoords="offset points", ha="right" if filled else "left", va="center",
                  fontsize=8)  # fmt: skip


def plot_contexts(
    sweeps: Mapping[str, Mapping[int, Interval]], published: Mapping[str, float], path: Path
) -> None:
    """Mean ROUGE of whole books against the length trained on; dotted lines: the paper's table."""
    with matplotlib.rc_context(BOTH_AXES):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        for rank, (name, sweep) in enumerate(sweeps.items()):
            lengths = sorted(sweep)
            values = [sweep[n]["value"] for n in lengths]
            errors = [
                [sweep[n]["value"] - sweep[n]["low"] for n in lengths],
                [sweep[n]["high"] - sweep[n]["value"] for n in lengths],
            ]
            axes.errorbar(lengths, values, errors, marker="o", markersize=5, capsize=3,
                          color=colour(rank), label=f"{name}, ours")  # fmt: skip
        for rank, (name, value) in enumerate(published.items()):
            axes.axhline(value, color=colour(rank), linestyle=":", linewidth=1.2,
                         label=f"{name}, the paper's table")  # fmt: skip
        length_axis(axes)
        axes.set_xlabel("training context, tokens")
        axes.set_ylabel("Mean ROUGE, whole books")
        axes.legend(fontsize=8)
        save(figure, path)
