"""The report's pictures, the same bytes for the same numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.evaluation.rouge import Interval
from pipeline.evaluation.tables import ROUGE_COLUMNS

COLOURS = {
    "pre-training": "#3b6fb6",
    "pre-trained": "#3b6fb6",
    "not pre-trained": "#e08a2c",
    "lead": "#7d8794",
    "permuted": "#c9ced6",
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

Metrics = Sequence[Mapping[str, Any]]


def series(metrics: Metrics, name: str) -> tuple[list[int], list[float]]:
    """Steps and values of the lines that hold `name`."""
    lines = [line for line in metrics if name in line]
    return [line["step"] for line in lines], [line[name] for line in lines]


def plot_losses(pretraining: Metrics, finetuning: Mapping[str, Metrics], path: Path) -> None:
    """Training (smoothed over the faint raw values) and validation losses, two panels."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_losses(left, "Pre-training", {"pre-training": pretraining})
        _draw_losses(right, "Fine-tuning", finetuning)
        _save(figure, path)


def plot_rouge(systems: Mapping[str, Mapping[str, Interval]], path: Path) -> None:
    """Grouped bars of each system's scores with their 95 % intervals."""
    width = 0.8 / len(systems)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        axes = figure.subplots()
        groups = np.arange(len(ROUGE_COLUMNS))
        for rank, (name, scores) in enumerate(systems.items()):
            columns = [scores[column] for column in ROUGE_COLUMNS]
            values = np.array([column["value"] for column in columns])
            errors = [
                values - [column["low"] for column in columns],
                [column["high"] for column in columns] - values,
            ]
            places = groups + (rank - (len(systems) - 1) / 2) * width
            axes.bar(places, values, 0.92 * width, color=COLOURS.get(name), label=name)
            axes.errorbar(
                places, values, np.abs(errors), fmt="none", ecolor="#333333", elinewidth=0.9
            )
            for place, column in zip(places, columns, strict=True):
                axes.annotate(
                    f"{column['value']:.1f}",
                    (place, column["high"]),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7.5,
                    color="#333333",
                )
        axes.set_xticks(groups, list(ROUGE_COLUMNS.values()))
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel("F1, percent")
        axes.set_title("ROUGE on the test split, with 95 % intervals")
        figure.legend(loc="outside lower center", ncols=len(systems))
        _save(figure, path)


def _draw_losses(axes: Axes, title: str, runs: Mapping[str, Metrics]) -> None:
    for name, metrics in runs.items():
        steps, losses = series(metrics, "loss")
        colour, of = COLOURS[name], f"{name}, " if len(runs) > 1 else ""
        axes.plot(steps, losses, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(steps, smooth(losses), color=colour, linewidth=1.8, label=f"{of}training")
        steps, losses = series(metrics, "validation_loss")
        if steps:
            axes.plot(
                steps,
                losses,
                color=colour,
                linestyle="--",
                linewidth=1.2,
                marker="o",
                markersize=4.5,
                markerfacecolor="white",
                label=f"{of}validation",
            )
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a target token")
    axes.legend()


def smooth(values: Sequence[float]) -> np.ndarray:
    """Each value's mean with its neighbours, a fortieth of the curve, fewer at its ends."""
    half = len(values) // 80
    sums = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    first, last = np.maximum(centre - half, 0), np.minimum(centre + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _save(figure: Figure, path: Path) -> None:
    # Without the version of matplotlib, which says nothing about the numbers.
    figure.savefig(path, dpi=150, metadata={"Software": None})
