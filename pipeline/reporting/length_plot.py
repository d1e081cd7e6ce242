"""Curves against the input length, on logarithmic axes; a cross where a case did not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from pipeline.common.plot_style import BOTH_AXES, colour, save


@dataclass(frozen=True)
class Curve:
    """Points (tokens, value), and the lengths in tokens that failed.

    Curves of one `rank` have one colour.
    """

    points: Sequence[tuple[int, float]]
    crosses: Sequence[int]
    rank: int
    dashed: bool


def plot_curves(
    panels: Mapping[str, Mapping[str, Curve]], path: Path, value_label: str = ""
) -> None:
    """Write a PNG: a panel for each title, with its curves by name; one legend for all."""
    with matplotlib.rc_context(BOTH_AXES):
        figure = Figure(figsize=(10, 4.6), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for panel, (title, curves) in zip(axes, panels.items(), strict=True):
            for place, (name, curve) in enumerate(curves.items()):
                panel.plot(*zip(*curve.points, strict=True) if curve.points else ((), ()),
                           "--" if curve.dashed else "-", marker="o", markersize=4,
                           color=colour(curve.rank), label=name)  # fmt: skip
                # Near the top, whatever the scale: it is beyond what could be measured.
                panel.plot(curve.crosses, [0.97 - 0.03 * place] * len(curve.crosses), "x",
                           color=colour(curve.rank), markeredgewidth=2,
                           transform=panel.get_xaxis_transform())  # fmt: skip
            panel.set_title(title)
            length_axis(panel)
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.set_ylabel(value_label)
        named = {
            name: handle
            for panel in axes
            for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(named.values(), named, loc="outside lower center", ncols=4)
        save(figure, path)


def length_axis(axes: Axes) -> None:
    """Lengths along the x axis by powers of two, 4096 shown as 4K."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda n, _: f"{n / 1024:g}K" if n >= 1024 else f"{n:g}")
    axes.set_xlabel("length, tokens")
