"""The paper's figures of the encoder's kernels (3, 6 and 7), of plot_kernels.py's output."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.common.plot_style import COLOURS, PALETTE, STYLE, save
from pipeline.reporting.json_file import read_json_object

SOME, ALL = "kernels_of_some_layers.png", "kernels_0.png"
MISSING = "Not given: --kernels FOLDER of plot_kernels.py."
FIRST = "0"
"""The dimension that the paper draws."""
SHOWN = 4
"""Layers of figure 3, evenly chosen from the first to the last."""
BINS = 16
SIDES = {"forward": -1, "backward": 1}
"""Side of a token on which the tokens lie that a direction reads."""


@dataclass(frozen=True)
class KernelPictures:
    """plot_kernels.py's folder: its numbers by layer and direction, and the images of |kernel|."""

    folder: Path
    layers: list[Mapping[str, Any]]
    images: list[str]

    @property
    def shown(self) -> list[int]:
        """The layers of figure 3."""
        count = min(SHOWN, len(self.layers))
        return sorted({round(k) for k in np.linspace(0, len(self.layers) - 1, count)})


def read_kernels(folder: Path) -> KernelPictures:
    """plot_kernels.py's output; ValueError where it is something else, or lacks dimension 0."""
    path = folder / "kernels.json"
    layers = read_json_object(path).get("layers") if path.is_file() else None
    images = sorted(picture.name for picture in folder.glob("magnitudes_*.png"))
    drawn = layers and all(
        FIRST in one.get("kernel", ()) for layer in layers for one in layer.values()
    )
    if not layers or not drawn or not images or not (folder / ALL).is_file():
        raise ValueError(
            f"{folder} is not plot_kernels.py's output with dimension 0; make it with `python "
            f"pipeline/plot_kernels.py CHECKPOINT --dimensions 0 --output {folder}`"
        )
    return KernelPictures(folder, layers, images[::-1])  # forward first


def draw_kernels(kernels: KernelPictures, output: Path) -> None:
    """Write the pictures of the three figures into `output`."""
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        numbers = kernels.shown
        figure = Figure(figsize=(8, 2.4 * -(-len(numbers) // 2) + 0.6), layout="constrained")
        grid = figure.subplots(-(-len(numbers) // 2), min(2, len(numbers)), squeeze=False)
        for axes in list(grid.flat)[len(numbers) :]:
            axes.remove()
        for axes, number in zip(grid.flat, numbers, strict=False):
            _draw_layer(axes, kernels.layers[number], number)
        named = dict(zip(*reversed(grid[0, 0].get_legend_handles_labels()), strict=True))
        figure.legend(named.values(), named, loc="outside lower center", ncols=4)
        save(figure, output / SOME)
    for name in (ALL, *kernels.images):
        if (kernels.folder / name).resolve() != (output / name).resolve():
            shutil.copyfile(kernels.folder / name, output / name)


def _draw_layer(axes: Axes, layer: Mapping[str, Any], number: int) -> None:
    """A layer's kernels over their effective lengths, and the mean of |kernel| in bins of lags."""
    lags = max(32, *(int(one["effective_length"][0]) for one in layer.values()))
    axes.axvline(0, color="#c9ced6", linewidth=0.8, zorder=0)
    for direction, one in layer.items():
        kernel = np.array(one["kernel"][FIRST][:lags])
        side = SIDES[direction]
        axes.plot(side * np.arange(len(kernel)), kernel, color=COLOURS[direction], linewidth=0.7,
                  alpha=0.6, label=direction)  # fmt: skip
        edges = np.linspace(0, len(kernel), BINS + 1).round().astype(int)
        means = [np.abs(kernel[a:b]).mean() for a, b in pairwise(edges)]
        axes.stairs(means, side * edges, color=PALETTE[3], linewidth=1.4,
                    label="mean modulus in bins")  # fmt: skip
    axes.set_title(f"layer {number}", fontsize=9, fontweight="normal")
    axes.xaxis.set_major_formatter(lambda lag, _: f"{abs(lag):,.0f}")
    axes.set_xlabel("← before      lag      after →", fontsize=8)
    axes.tick_params(labelsize=8)


def images_of(kernels: KernelPictures) -> Iterator[str]:
    """The images of |kernel| in Markdown, a picture a direction."""
    for name in kernels.images:
        direction = name.removeprefix("magnitudes_").removesuffix(".png")
        yield f"![|{direction} kernel| of every layer]({name})"
