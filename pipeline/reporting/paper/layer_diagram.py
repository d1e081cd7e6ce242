"""The paper's figure 2: a block of the encoder, and what its two sub-layers compute."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.common.plot_style import STYLE, save

BOX = {"boxstyle": "round,pad=0.4", "facecolor": "#eef3fa", "edgecolor": "#3b6fb6"}
MIXES = BOX | {"facecolor": "#fdf1e2", "edgecolor": "#e08a2c"}
SIGN = {"boxstyle": "circle,pad=0.2", "facecolor": "white", "edgecolor": "#555555"}
GREY = "#555555"
ARROW = {"arrowstyle": "-|>", "color": GREY, "shrinkA": 0, "shrinkB": 0}


def plot_layer(path: Path) -> None:
    """Write a PNG of three columns: the block, its state-space layer, its feed-forward layer."""
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(7.5, 4.4), layout="constrained")
        panels = figure.subplots(1, 3)
        for axes, title, draw in zip(
            panels,
            ("Block", "State space", "Feed-forward"),
            (_block, _state_space, _feed_forward),
            strict=True,
        ):
            axes.set_axis_off()
            axes.set(xlim=(0, 1), ylim=(0, 1))
            axes.set_title(title, loc="center")
            draw(axes)
        save(figure, path)


def _block(axes: Axes) -> None:
    """Two sub-layers, each behind a norm and beside a residual connection."""
    middle, beside = 0.58, 0.1
    _line(axes, (middle, 0.02), (middle, 0.98))
    for low, name, box in ((0.07, "state space", MIXES), (0.53, "feed-forward", BOX)):
        plus = low + 0.36
        _put(axes, middle, low + 0.1, "RMSNorm", BOX)
        _put(axes, middle, low + 0.23, name, box)
        _put(axes, middle, plus, "+", SIGN)
        _line(axes, (middle, low), (beside, low), (beside, plus))
        _arrow(axes, (beside, plus), (middle - 0.07, plus))
    _arrow(axes, (middle, 0.95), (middle, 1))


def _state_space(axes: Axes) -> None:
    """W_o (q * conv(k)), with q and k linear in the input."""
    left, right, centre = 0.18, 0.7, 0.44
    _paths(axes, left, right, centre)
    _put(axes, left, 0.22, "$W_q$", BOX)
    _put(axes, right, 0.22, "$W_k$", BOX)
    _put(axes, right, 0.47, "convolution,\nforward and\nbackward", MIXES)
    _put(axes, centre, 0.86, "$W_o$", BOX)


def _feed_forward(axes: Axes) -> None:
    """W (GELU(W_0 x) * W_1 x)."""
    left, right, centre = 0.22, 0.78, 0.5
    _paths(axes, left, right, centre)
    _put(axes, left, 0.22, "$W_0$", BOX)
    _put(axes, right, 0.22, "$W_1$", BOX)
    _put(axes, left, 0.47, "GELU", BOX)
    _put(axes, centre, 0.86, "$W$", BOX)


def _paths(axes: Axes, left: float, right: float, centre: float) -> None:
    """Two paths from the input at the bottom, whose product goes on to the top."""
    low, times = 0.08, 0.7
    _line(axes, (centre, 0.02), (centre, low))
    for side, beside in ((left, -0.07), (right, 0.07)):
        _line(axes, (centre, low), (side, low), (side, times))
        _arrow(axes, (side, times), (centre + beside, times))
    _line(axes, (centre, times), (centre, 0.98))
    _arrow(axes, (centre, 0.95), (centre, 1))
    _put(axes, centre, times, "×", SIGN)


def _put(axes: Axes, x: float, y: float, text: str, box: dict) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5, bbox=box, zorder=3)


def _line(axes: Axes, *points: tuple[float, float]) -> None:
    axes.plot(*zip(*points, strict=True), color=GREY, linewidth=1, zorder=1)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops=ARROW, zorder=2, annotation_clip=False)
