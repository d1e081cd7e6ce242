"""Figures of the state-space layers' kernels (the paper's figures 3, 6 and 7), for files and for
TensorBoard."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from pipeline.common.plot_style import BOTH_AXES, COLOURS, STYLE
from pipeline.kernels.statistics import DIRECTIONS, LONGEST, LayerKernels, binned, decay, octaves

DARKER = {"forward": "#1d3a63", "backward": "#8a4b0c"}
SIDES = {"forward": -1, "backward": 1}
"""Side of a token on which the tokens lie that a direction reads."""
BINS = 16
"""Bins of lags in which the mean of |kernel| is shown."""
DECADES = 5
"""Powers of ten that a logarithmic scale covers."""
SMALLEST = 1e-30
"""Top of the scale where all values are zero."""
FEWEST_LAGS = 32
PER_ROW = 4
NARROWEST = 5.0
"""Width in inches of a figure of one panel a layer, at least, for its title and legend."""
IMAGE = (384, 512)
"""Maximum rows and columns of a layer's image; larger ones are averaged down."""
WHISKERS = "box: quartiles and median; whiskers: 5 to 95 %"


def figures(
    layers: Sequence[LayerKernels], dimensions: Sequence[int]
) -> Iterator[tuple[str, Figure]]:
    """All figures, as (name, figure)."""
    for dimension in dimensions:
        yield f"kernels_{dimension}", kernel_figure(layers, dimension)
        yield f"bounds_{dimension}", bound_figure(layers, dimension)
    yield "decay", decay_figure(layers)
    yield "radii_and_lengths", spread_figure(layers)
    for direction in DIRECTIONS[: len(layers[0].values)]:
        yield f"magnitudes_{direction}", magnitude_figure(layers, direction)


def kernel_figure(layers: Sequence[LayerKernels], dimension: int) -> Figure:
    """One channel's kernel in every layer, over its effective length, with its binned modulus."""

    def draw(axes: Axes, layer: LayerKernels) -> int:
        lags = _shown_lags([layer], dimension)
        edges = np.linspace(0, lags, BINS + 1).round().astype(int).tolist()
        for (name, side), kernel in zip(SIDES.items(), layer.values[:, dimension], strict=False):
            axes.plot(side * np.arange(lags), kernel[:lags].numpy(), color=COLOURS[name],
                      linewidth=0.6, alpha=0.55, label=f"{name} kernel")  # fmt: skip
            axes.stairs(binned(kernel, edges).numpy(), side * np.array(edges), color=DARKER[name],
                        linewidth=1.3, label="mean modulus in bins")  # fmt: skip
        axes.yaxis.set_major_locator(MaxNLocator(3))
        return lags

    return _by_layer(layers, dimension, f"Kernels of dimension {dimension}", draw)


def bound_figure(layers: Sequence[LayerKernels], dimension: int) -> Figure:
    """One channel's |kernel| in every layer, with its bound, over the same lags in all."""
    lags = _shown_lags(layers, dimension)

    def draw(axes: Axes, layer: LayerKernels) -> int:
        bounds = layer.bound(dimension).numpy()
        sizes = layer.values[:, dimension].abs().numpy()
        top = 10.0 ** math.ceil(math.log10(max(bounds.max(), SMALLEST)))
        for d, (name, side) in zip(range(len(bounds)), SIDES.items(), strict=False):
            places = side * np.arange(lags)
            axes.plot(places, sizes[d, :lags], color=COLOURS[name],
                      linewidth=0.7, label=f"|{name} kernel|")  # fmt: skip
            axes.plot(places, bounds[d, :lags], "--", color=COLOURS[name], linewidth=1,
                      label="its bound ρ(A)$^{lag}$ |c|ᵀ|b|")  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylim(top * 10.0**-DECADES, top)
        axes.yaxis.set_minor_locator(NullLocator())
        return lags

    return _by_layer(layers, dimension, f"|Kernels| of dimension {dimension}, and the bound", draw)


def decay_figure(layers: Sequence[LayerKernels]) -> Figure:
    """|kernel| of every layer, averaged over channels and octaves of lags."""
    edges = np.array(octaves(layers[0].values.shape[-1]))
    middles = np.sqrt(edges[1:-1] * (edges[2:] - 1.0))  # of all bins but the first, lag 0
    decays = np.array([decay(layer)[:, 1:].numpy() for layer in layers])  # (layers, D, bins)
    colours = colormaps["viridis"].resampled(len(layers))
    with rc_context(BOTH_AXES):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        grid = figure.subplots(1, decays.shape[1], sharey=True, squeeze=False)[0]
        for d, axes in enumerate(grid):
            for number, means in enumerate(decays[:, d]):
                axes.plot(middles, means, color=colours(number), marker="o", markersize=3)
            axes.set(xscale="log", yscale="log", xlabel="lag, tokens", title=DIRECTIONS[d])
            axes.xaxis.set_major_formatter(lambda lag, _: f"{lag:,.0f}")
        grid[0].set_ylabel("mean |kernel| over all dimensions")
        _layer_bar(figure, grid, colours, len(layers))
    return figure


def spread_figure(layers: Sequence[LayerKernels]) -> Figure:
    """Every layer's spectral radii and effective lengths: median, quartiles, 5 and 95 %."""
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _boxes(left, [1 - layer.radii.numpy() for layer in layers])
        left.set(title="Spectral radius ρ(A) of a token's step", ylabel="1 − ρ(A)")
        _boxes(right, [layer.lengths.numpy() for layer in layers])
        right.set(
            title=f"Lags that hold {in_percent(layers[0].share)} of |kernel|", ylabel="tokens"
        )
        if any((layer.lengths == LONGEST).any() for layer in layers):
            right.axhline(LONGEST, color="#555555", linewidth=0.8, linestyle=":")
        for axes in (left, right):
            axes.set(yscale="log", xlabel="layer")
        right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        right.yaxis.set_major_formatter(lambda lag, _: f"{lag:,.0f}")
        right.yaxis.set_minor_formatter(NullFormatter())
        handles: list[Artist] = [
            Patch(color=COLOURS[name], label=name) for name in DIRECTIONS[: len(layers[0].values)]
        ]
        handles.append(Line2D([], [], linestyle="", label=WHISKERS))
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def magnitude_figure(layers: Sequence[LayerKernels], direction: str) -> Figure:
    """|kernel| of every layer as an image, channels by lags, on one colour scale."""
    scale = common_scale(layers)
    channels, lags = layers[0].values.shape[1:]
    size = (min(IMAGE[0], channels), min(IMAGE[1], lags))
    images = [
        adaptive_avg_pool2d(magnitudes(layer, direction)[None], size)[0].numpy() for layer in layers
    ]
    extent = (0, lags, channels, 0)
    columns = min(3, len(layers))
    rows = -(-len(layers) // columns)
    with rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(4.4 * columns, 2.1 * rows + 0.6), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for number, axes in enumerate(grid.flat):
            if number >= len(images):
                axes.set_axis_off()
                continue
            image = axes.imshow(images[number], norm=scale, cmap="magma", aspect="auto",
                                extent=extent)  # fmt: skip
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_title(f"layer {number}", fontsize=9, fontweight="normal")
        figure.colorbar(
            image, ax=grid, label="|kernel|", shrink=1 if rows < 3 else 0.6, extend="min"
        )
        figure.suptitle(f"|{direction} kernel| of every layer", fontweight="bold")
        figure.supxlabel("lag, tokens", fontsize=10)
        figure.supylabel("dimension", fontsize=10)
    return figure


def magnitudes(layer: LayerKernels, direction: str) -> Tensor:
    """|kernel| of a direction, (H, L)."""
    return layer.values[DIRECTIONS.index(direction)].abs()


def common_scale(layers: Sequence[LayerKernels]) -> LogNorm:
    """Colours from the largest value of all layers and directions down DECADES powers of ten."""
    top = max(SMALLEST, *(float(layer.values.abs().max()) for layer in layers))
    return LogNorm(top * 10.0**-DECADES, top, clip=True)


def in_percent(share: float) -> str:
    """0.99 as 99 %."""
    return f"{100 * share:.4g} %"


def _shown_lags(layers: Sequence[LayerKernels], dimension: int) -> int:
    """Lags drawn: the channel's longest effective length in any layer, within the values."""
    needed = max(int(layer.lengths[:, dimension].max()) for layer in layers)
    return min(layers[0].values.shape[-1], max(needed, FEWEST_LAGS))


def _by_layer(
    layers: Sequence[LayerKernels],
    dimension: int,
    heading: str,
    draw: Callable[[Axes, LayerKernels], int],
) -> Figure:
    """A panel a layer, tokens before to the left, after to the right; `draw` returns the lags."""
    columns = min(PER_ROW, len(layers))
    rows = -(-len(layers) // columns)
    both = len(layers[0].values) == 2
    with rc_context({**STYLE, "axes.grid": False}):
        width = max(NARROWEST, 3.2 * columns + 0.6)
        figure = Figure(figsize=(width, 2.1 * rows + 1.2), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number >= len(layers):
                axes.set_axis_off()
                continue
            axes.axvline(0, color="#c9ced6", linewidth=0.8, zorder=0)
            lags = draw(axes, layers[number])
            axes.set_xlim(-lags, lags if both else 0)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.xaxis.set_major_formatter(lambda lag, _: f"{abs(lag):,.0f}")
            title = f"layer {number}: {_lengths_in_words(layers[number], dimension)}"
            axes.set_title(title, fontsize=8.5, fontweight="normal")
            axes.tick_params(labelsize=8)
            if number + columns >= len(layers):  # bottom row
                axes.set_xlabel("← before      lag      after →", fontsize=8)
        handles = grid[0, 0].get_legend_handles_labels()
        ncols = 4 if columns > 2 else 2  # the four do not fit side by side
        figure.legend(*handles, loc="outside lower center", ncols=ncols)
        figure.suptitle(heading, fontweight="bold")
    return figure


def _lengths_in_words(layer: LayerKernels, dimension: int) -> str:
    """The effective length of a channel, in words, on two lines: on one it meets its neighbour."""
    lengths = layer.lengths[:, dimension].tolist()
    places = (
        f"{length:,} {side}" if length < LONGEST else f"over {LONGEST:,} {side}"
        for length, side in zip(lengths, ("before", "after"), strict=False)
    )
    return f"{in_percent(layer.share)} in\n{', '.join(places)}"


def _boxes(axes: Axes, values: Sequence[np.ndarray]) -> None:
    """A box for each layer and direction, of values (D, H)."""
    count = len(values[0])
    width = 0.7 / count
    for d, name in enumerate(DIRECTIONS[:count]):
        places = np.arange(len(values)) + (d - (count - 1) / 2) * width
        axes.boxplot(
            [layer[d] for layer in values], positions=places, widths=0.85 * width, whis=(5, 95),
            showfliers=False, patch_artist=True, manage_ticks=False,
            boxprops={"facecolor": COLOURS[name], "edgecolor": COLOURS[name], "alpha": 0.55},
            medianprops={"color": "#222222"},
            whiskerprops={"color": COLOURS[name]}, capprops={"color": COLOURS[name]},
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _layer_bar(figure: Figure, grid: Any, colours: Any, count: int) -> None:
    scale = BoundaryNorm(np.arange(count + 1) - 0.5, count)
    mappable = ScalarMappable(scale, colours)
    figure.colorbar(mappable, ax=grid, label="layer", ticks=range(count))
