"""The plot of a dataset: lengths and exclusions; the same bytes for the same numbers."""

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pipeline.common.files import replace_bytes
from pipeline.common.plot_style import PALETTE, STYLE

SOURCE, TARGET, KEPT, EXCLUDED = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[5]


def save_report(manifest: dict[str, Any], path: Path) -> None:
    """Write a PNG: histograms of source and target lengths, and exclusions by reason.

    Lengths are in ids before truncation, EOS included; a dashed line marks the truncation length.
    """
    image = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 4.2), layout="constrained")
        figure.suptitle(f"{manifest['name']} ({manifest['kind']}, {manifest['split']})")
        left, middle, right = figure.subplots(1, 3)
        for axes, side, colour in ((left, "source", SOURCE), (middle, "target", TARGET)):
            limit = manifest["settings"].get(f"{side}_length", 0)
            axes.set_title(f"{side.capitalize()}s")
            _draw_lengths(axes, manifest["lengths"][side], limit, colour)
        _draw_counts(right, manifest["counts"])
        # Without the software's version, which differs from machine to machine.
        figure.savefig(image, format="png", dpi=120, metadata={"Software": None})
    replace_bytes(path, image.getvalue())


def _draw_lengths(axes: Axes, lengths: dict[str, Any], limit: int, colour: str) -> None:
    histogram = lengths["histogram"]
    edges = histogram["edges"]
    axes.stairs(histogram["counts"], [edges[0] / 2, *edges], fill=True, color=colour)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_xlabel(
        f"ids: mean {lengths['mean']}, median {lengths['median']},\n"
        f"90 % up to {lengths['p90']}, longest {lengths['max']}"
    )
    axes.set_ylabel("samples")
    if limit:
        axes.axvline(limit, linestyle="--", color="#333333", label=f"truncated at {limit}")
        axes.legend()


def _draw_counts(axes: Axes, counts: dict[str, Any]) -> None:
    excluded = sorted(counts["excluded"].items(), key=lambda pair: -pair[1])
    rows = [("kept", counts["kept"]), *excluded][::-1]  # the first at the top
    names, values = zip(*rows, strict=True)
    colours = [KEPT if name == "kept" else EXCLUDED for name in names]
    bars = axes.barh(names, values, color=colours)
    axes.bar_label(bars, [f"{value:,}" for value in values], padding=3)
    axes.margins(x=0.18)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(f"{counts['documents']:,} documents")
