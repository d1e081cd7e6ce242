"""Curves over the length, on logarithmic axes; a cross where a case had no result."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from pipeline.benchmarking.sweep import Row, label
from pipeline.evaluation.plots import STYLE

COLOURS = (
    "#3b6fb6", "#e08a2c", "#4f9d69", "#b5485d", "#7d5fa8", "#7d8794", "#c9a227", "#3aa6a6",
    "#5d4037",
)  # fmt: skip
STYLES = {"training": "-", "inference": "--", "plain": "-", "saving": "--"}


def draw(rows: Sequence[Row], panels: Mapping[str, str], path: Path) -> None:
    """Write a PNG with a panel per field of the rows, given with its title."""
    rows = [row for row in rows if row["subject"] != "ratio"]  # the layer once more
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "both"}):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        for axes, (field, title) in zip(
            figure.subplots(1, len(panels)), panels.items(), strict=True
        ):
            _draw_panel(axes, [row for row in rows if field in row or "cross" in row], field)
            axes.set_title(title)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.savefig(path, dpi=150, metadata={"Software": None})


def draw_memory(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG of whole systems' memory, a panel for each mode (the paper's figure 4)."""
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "both"}):
        figure = Figure(figsize=(10, 5), layout="constrained")
        modes = list(dict.fromkeys(row["mode"] for row in rows))
        for axes, mode in zip(figure.subplots(1, len(modes), squeeze=False)[0], modes, strict=True):
            some = [row for row in rows if row["mode"] == mode]
            _draw_panel(axes, some, "peak_gib", name="subject", style="memory")
            axes.set_title(f"{mode}: peak GiB over the model")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.savefig(path, dpi=150, metadata={"Software": None})


def _draw_panel(
    axes: Axes, rows: Sequence[Row], field: str, name: str | None = None, style: str = "mode"
) -> None:
    """A line for each name (that field of the rows, or their label) and style."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda length, _: in_k(round(length)))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("length, tokens")
    named = [(row[name] if name else label(row), row) for row in rows]
    for rank, one in enumerate(dict.fromkeys(key for key, _ in named)):
        colour = COLOURS[rank % len(COLOURS)]
        own = [row for key, row in named if key == one]
        for kind in dict.fromkeys(row[style] for row in own):
            some = [row for row in own if row[style] == kind]
            points = [(row["length"], row[field]) for row in some if row.get(field, 0) > 0]
            axes.plot(*zip(*points, strict=True) if points else ((), ()), STYLES[kind], marker="o",
                      markersize=4, color=colour, label=f"{one}, {kind}")  # fmt: skip
        crossed = [row["length"] for row in own if "cross" in row]
        # Near the top, whatever the scale: it is beyond what could be measured.
        axes.plot(crossed, [0.97 - 0.06 * rank] * len(crossed), "x", color=colour, markersize=8,
                  markeredgewidth=2, transform=axes.get_xaxis_transform())  # fmt: skip


def in_k(length: int) -> str:
    """4096 as 4K."""
    return f"{length // 1024}K" if length >= 1024 and length % 1024 == 0 else str(length)
