"""The paper's figures of scores, memory and length, as pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from pipeline.evaluation.bootstrap import Interval
from pipeline.evaluation.plots import OTHERS, STYLE, save

BOTH_AXES = {**STYLE, "axes.grid.axis": "both"}
AREA = 120.0  # points squared of a circle whose system takes the least memory to train


@dataclass(frozen=True)
class Circle:
    """A system: its memory in inference and training as multiples of the least, its Mean ROUGE.

    `training` None: it does not fit.
    """

    inference: float
    training: float | None
    rouge: float


@dataclass(frozen=True)
class Curve:
    """Memory against the length: points (tokens, GiB), and where there was no room.

    Curves of one `rank` are of one system and have one colour.
    """

    points: Sequence[tuple[int, float]]
    crosses: Sequence[int]
    rank: int
    dashed: bool


def plot_circles(
    panels: Mapping[str, tuple[Mapping[str, Circle], Mapping[str, Circle]]], path: Path
) -> None:
    """Mean ROUGE against inference memory at 16K, the area of a circle its training memory.

    A panel a set: the paper's systems (hollow) and ours (filled), by name.
    """
    with matplotlib.rc_context(BOTH_AXES):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        names = list(dict.fromkeys(n for pair in panels.values() for some in pair for n in some))
        colours = {name: OTHERS[rank % len(OTHERS)] for rank, name in enumerate(names)}
        for panel, (title, pair) in zip(axes, panels.items(), strict=True):
            for circles, filled in zip(pair, (False, True), strict=True):
                for name, circle in circles.items():
                    _draw_circle(panel, name, circle, colours[name], filled)
            panel.set_title(title)
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
            panel.set_xlabel("inference memory at 16K, × the least")
            panel.set_ylabel("Mean ROUGE")
            panel.margins(0.18)
        legend = "hollow: the paper, filled: ours; area: training memory, a cross: too much of it"
        figure.supxlabel(legend, fontsize=9)
        save(figure, path)


def _draw_circle(axes: Axes, name: str, circle: Circle, colour: str, filled: bool) -> None:
    fits = circle.training is not None
    style = {"facecolors": colour if filled else "none", "edgecolors": colour, "alpha": 0.8}
    axes.scatter(
        [circle.inference],
        [circle.rouge],
        s=AREA * circle.training if circle.training is not None else AREA,
        marker="o" if fits else "x",
        linewidths=1.5,
        **(style if fits else {"color": colour}),
    )
    axes.annotate(name, (circle.inference, circle.rouge), xytext=(0, 9 if filled else -14),
                  textcoords="offset points", ha="center", fontsize=8)  # fmt: skip


def plot_memory(panels: Mapping[str, Mapping[str, Curve]], path: Path) -> None:
    """Peak memory against the length, a panel a mode, a curve a system, a cross where none fits."""
    with matplotlib.rc_context(BOTH_AXES):
        figure = Figure(figsize=(10, 4.6), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for panel, (title, curves) in zip(axes, panels.items(), strict=True):
            for place, (name, curve) in enumerate(curves.items()):
                colour = OTHERS[curve.rank % len(OTHERS)]
                panel.plot(*zip(*curve.points, strict=True) if curve.points else ((), ()),
                           "--" if curve.dashed else "-", marker="o", markersize=4,
                           color=colour, label=name)  # fmt: skip
                # Near the top, whatever the scale: it is beyond what could be measured.
                panel.plot(curve.crosses, [0.97 - 0.03 * place] * len(curve.crosses), "x",
                           color=colour, markeredgewidth=2,
                           transform=panel.get_xaxis_transform())  # fmt: skip
            panel.set_title(title)
            _length_axis(panel)
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.set_ylabel("peak over the built model, GiB")
        named = {
            name: handle
            for panel in axes
            for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(named.values(), named, loc="outside lower center", ncols=4)
        save(figure, path)


def plot_contexts(
    sweeps: Mapping[str, Mapping[int, Interval]], published: Mapping[str, float], path: Path
) -> None:
    """Mean ROUGE of whole books against the length trained on, with the paper's table as lines."""
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
                          color=OTHERS[rank % len(OTHERS)], label=f"{name}, ours")  # fmt: skip
        for rank, (name, value) in enumerate(published.items()):
            axes.axhline(value, color=OTHERS[rank % len(OTHERS)], linestyle=":", linewidth=1.2,
                         label=f"{name}, the paper's table")  # fmt: skip
        _length_axis(axes)
        axes.set_xlabel("training context, tokens")
        axes.set_ylabel("Mean ROUGE, whole books")
        axes.legend(fontsize=8)
        save(figure, path)


def _length_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda n, _: f"{n / 1024:g}K" if n >= 1024 else f"{n:g}")
    axes.set_xlabel("length, tokens")
