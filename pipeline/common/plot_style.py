"""Style, colours and file format of every picture of the project."""

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pipeline.common.files import replace_bytes

PALETTE = (
    "#3b6fb6", "#e08a2c", "#3f9b6c", "#b5485d", "#7a62b0", "#7d8794", "#c9a227", "#3aa6a6",
    "#5d4037",
)  # fmt: skip
"""Colours of what has none in COLOURS, by rank."""
COLOURS = {
    "pre-training": PALETTE[0],
    "pre-trained": PALETTE[0],
    "not pre-trained": PALETTE[1],
    "lead": "#7d8794",
    "lead words": "#a5aeba",
    "permuted": "#c9ced6",
    "ours": PALETTE[0],
    "the paper": "#c9ced6",
    "forward": PALETTE[0],
    "backward": PALETTE[1],
}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is everywhere
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e6ea",
    "legend.frameon": False,
}
BOTH_AXES = {**STYLE, "axes.grid.axis": "both"}
"""With grid lines of both axes."""
DOTS_PER_INCH = 150


def colour(rank: int) -> str:
    """The palette's colour of a rank, from the first again after the last."""
    return PALETTE[rank % len(PALETTE)]


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, in one step; the same bytes for the same figure."""
    content = io.BytesIO()
    # Without matplotlib's version, which says nothing about the numbers.
    figure.savefig(content, dpi=DOTS_PER_INCH, format="png", metadata={"Software": None})
    replace_bytes(path, content.getvalue())
