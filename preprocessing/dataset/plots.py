"""The pictures of a dataset's report; the same bytes for the same numbers."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pipeline.common.files import replace_bytes
from pipeline.common.plot_style import PALETTE, STYLE

SOURCE, TARGET, KEPT, EXCLUDED = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[5]
LEAST_SHARE = 0.004
"""Of the longest bar: shorter ones could not be seen."""


def plot_lengths(manifest: dict[str, Any], path: Path) -> None:
    """Write a PNG: histograms of source and target lengths.

    In ids before truncation, EOS included; a dashed line marks the truncation length.
    """

    def draw(figure: Figure) -> None:
        for axes, (side, colour) in zip(
            figure.subplots(2), (("source", SOURCE), ("target", TARGET)), strict=True
        ):
            limit = manifest["settings"].get(f"{side}_length", 0)
            axes.set_title(f"{side.capitalize()}s")
            _draw_lengths(axes, manifest["lengths"][side], limit, colour)

    _save(draw, path, (6.5, 6.4))


def plot_counts(counts: Mapping[str, int], path: Path, kept: frozenset[str] = frozenset()) -> None:
    """Write a PNG: a bar for each count, in their order from the top; those `kept` in green."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        names = [*counts][::-1]
        values = [counts[name] for name in names]
        least = LEAST_SHARE * max(values, default=0)
        colours = [KEPT if name in kept else EXCLUDED for name in names]
        bars = axes.barh(names, [max(value, least) for value in values], color=colours)
        axes.bar_label(bars, [f"{value:,}" for value in values], padding=3)
        axes.margins(x=0.18)
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)

    _save(draw, path, (6.5, 0.8 + 0.34 * len(counts)))


def _draw_lengths(axes: Axes, lengths: dict[str, Any], limit: int, colour: str) -> None:
    histogram = lengths["histogram"]
    counts, edges = histogram["counts"], histogram["edges"]
    first = next((index for index, count in enumerate(counts) if count), 0)
    axes.stairs(counts[first:], [edges[0] / 2, *edges][first:], fill=True, color=colour)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_xlabel("ids before truncation")
    axes.set_ylabel("samples")
    if limit:
        axes.axvline(limit, linestyle="--", color="#333333", label=f"truncated at {limit:,}")
        axes.legend()


def _save(draw: Callable[[Figure], None], path: Path, size: tuple[float, float]) -> None:
    image = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        # Without the software's version, which differs from machine to machine.
        figure.savefig(image, format="png", dpi=120, metadata={"Software": None})
    replace_bytes(path, image.getvalue())
