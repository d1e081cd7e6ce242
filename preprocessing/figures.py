"""The picture of a dataset: lengths, and what was left out; the same bytes for the same numbers."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pipeline.files import temporary_name

COLOURS = {"source": "#3b6fb6", "target": "#e08a2c", "kept": "#4f9d69", "excluded": "#7d8794"}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is everywhere
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e6ea",
}


def save_report(manifest: dict[str, Any], path: Path) -> None:
    """Write a PNG: histograms of source and target lengths, and documents left out, by reason.

    Lengths are in ids before any cut, EOS included; a dashed line marks where the cut is.
    """
    temporary = temporary_name(path)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 4.2), layout="constrained")
        figure.suptitle(f"{manifest['name']} ({manifest['kind']}, {manifest['split']})")
        left, middle, right = figure.subplots(1, 3)
        for axes, side in ((left, "source"), (middle, "target")):
            limit = manifest["settings"].get(f"{side}_length", 0)
            _draw_lengths(axes, side, manifest["lengths"][side], limit)
        _draw_counts(right, manifest["counts"])
        try:
            # The software's name and version would differ from machine to machine.
            figure.savefig(temporary, format="png", dpi=120, metadata={"Software": None})
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _draw_lengths(axes: Axes, side: str, lengths: dict[str, Any], limit: int) -> None:
    histogram = lengths["histogram"]
    edges = histogram["edges"]
    axes.stairs(histogram["counts"], [edges[0] / 2, *edges], fill=True, color=COLOURS[side])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_title(f"{side.capitalize()}s")
    axes.set_xlabel(
        f"ids: mean {lengths['mean']}, median {lengths['median']},\n"
        f"90 % up to {lengths['p90']}, longest {lengths['max']}"
    )
    axes.set_ylabel("samples")
    if limit:
        axes.axvline(limit, linestyle="--", color="#333333", label=f"cut at {limit}")
        axes.legend(frameon=False)


def _draw_counts(axes: Axes, counts: dict[str, Any]) -> None:
    excluded = sorted(counts["excluded"].items(), key=lambda pair: -pair[1])
    rows = [("kept", counts["kept"]), *excluded][::-1]  # the first at the top
    names, values = zip(*rows, strict=True)
    colours = [COLOURS["kept" if name == "kept" else "excluded"] for name in names]
    bars = axes.barh(names, values, color=colours)
    axes.bar_label(bars, [f"{value:,}" for value in values], padding=3)
    axes.margins(x=0.18)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(f"{counts['documents']:,} documents")
