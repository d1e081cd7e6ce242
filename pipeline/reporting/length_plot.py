"""Curves against the input length, on logarithmic axes; a cross where a case did not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from pipeline.common.plot_style import BOTH_AXES, colour, save

ROW, MOST = 0.03, 0.3
"""Parts of a panel's height that are kept above all curves for crosses: for the crosses of a curve,
and for all of them at most."""


@dataclass(frozen=True)
class Curve:
    """Points (tokens, value), and the lengths in tokens that failed.

    Curves of one `rank` have one colour. `spreads`: the least and most of each point's runs.
    """

    points: Sequence[tuple[int, float]]
    crosses: Sequence[int]
    rank: int
    dashed: bool
    spreads: Sequence[tuple[float, float]] = ()


def plot_curves(
    panels: Mapping[str, Mapping[str, Curve]], path: Path, value_label: str = ""
) -> None:
    """Write a PNG: a panel for each title, with its curves by name; one legend for all."""
    with matplotlib.rc_context(BOTH_AXES):
        figure = Figure(figsize=(7.5, 3.4 * len(panels) + 0.8), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for panel, (title, curves) in zip(axes, panels.items(), strict=True):
            for name, curve in curves.items():
                _draw_curve(panel, name, curve)
            panel.set_title(title)
            length_axis(panel)
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_minor_locator(NullLocator())
            panel.set_ylabel(value_label)
            _draw_crosses(panel, [curve for curve in curves.values() if curve.crosses])
        named = {
            name: handle
            for panel in axes
            for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(named.values(), named, loc="outside lower center", ncols=4)
        save(figure, path)


def _draw_curve(axes: Axes, name: str, curve: Curve) -> None:
    lengths, values = zip(*curve.points, strict=True) if curve.points else ((), ())
    axes.plot(lengths, values, "--" if curve.dashed else "-", marker="o", markersize=4,
              color=colour(curve.rank), label=name)  # fmt: skip
    for length, (least, most) in zip(lengths, curve.spreads, strict=False):
        axes.vlines(length, least, most, color=colour(curve.rank), linewidth=3, alpha=0.35)


def _draw_crosses(axes: Axes, curves: Sequence[Curve]) -> None:
    """A row of crosses for each curve that has some, in a strip above all points of the panel."""
    if not curves:
        return
    low, high = axes.get_ylim()
    strip = min(MOST, ROW * (len(curves) + 2))
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])
    axes.set_ylim(low, low * (high / low) ** (1 / (1 - strip)))
    axes.add_patch(
        Rectangle((0, 1 - strip), 1, strip, transform=axes.transAxes, color="#f0f2f5", zorder=0)
    )
    axes.text(0.01, 0.985, "did not fit", transform=axes.transAxes, va="top", fontsize=8,
              color="#59636e")  # fmt: skip
    for place, curve in enumerate(curves, start=1):
        height = 1 - strip * place / (len(curves) + 1)
        axes.plot(curve.crosses, [height] * len(curve.crosses), "+" if curve.dashed else "x",
                  color=colour(curve.rank), markeredgewidth=1.6, markersize=4.5,
                  transform=axes.get_xaxis_transform())  # fmt: skip


def length_axis(axes: Axes) -> None:
    """Lengths along the x axis by powers of two, 4096 shown as 4K."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda n, _: f"{n / 1024:g}K" if n >= 1024 else f"{n:g}")
    axes.set_xlabel("length, tokens")
