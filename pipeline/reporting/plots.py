"""Pictures of losses and scores; the same bytes for the same numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.common.plot_style import COLOURS, STYLE, colour, save
from pipeline.reporting.run_reader import LOSS, VALIDATION_LOSS, Run
from pipeline.reporting.tables import ROUGE_COLUMNS
from pipeline.scoring.bootstrap import Interval

POINTS = 2000  # drawn of a curve, at least; a longer one is thinned out evenly


def plot_losses(panels: Mapping[str, Mapping[str, Run]], path: Path) -> None:
    """Training losses (smoothed, raw values faint) and validation losses, a panel a title."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 3.4 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for panel, (title, runs) in zip(axes, panels.items(), strict=True):
            _draw_losses(panel, title, runs)
        save(figure, path)


def plot_rouge(systems: Mapping[str, Mapping[str, Interval]], path: Path) -> None:
    """Each system's scores of every ROUGE type."""
    columns = {
        name: {shown: scores[column] for column, shown in ROUGE_COLUMNS.items()}
        for name, scores in systems.items()
    }
    plot_bars(columns, "ROUGE on the test split, with 95 % intervals", path)


def plot_bars(systems: Mapping[str, Mapping[str, Interval]], title: str, path: Path) -> None:
    """Grouped bars with intervals: in each group one bar a system; all have the same groups."""
    width = 0.8 / len(systems)
    names = list(next(iter(systems.values())))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.5, 3.9), layout="constrained")
        axes = figure.subplots()
        groups = np.arange(len(names))
        for rank, (name, scores) in enumerate(systems.items()):
            columns = [scores[group] for group in names]
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
        axes.set_xticks(groups, names)
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel("F1, percent")
        axes.set_title(title)
        figure.legend(loc="outside lower center", ncols=len(systems))
        save(figure, path)


def _draw_losses(axes: Axes, title: str, runs: Mapping[str, Run]) -> None:
    for rank, (name, run) in enumerate(runs.items()):
        steps, losses = run[LOSS]
        every = slice(None, None, max(1, len(steps) // POINTS))
        own = COLOURS.get(name, colour(rank))
        of = "" if name == title.lower() else f"{name}, "
        label = f"{of}training"
        axes.plot(steps[every], losses[every], color=own, alpha=0.25, linewidth=0.8)
        axes.plot(steps[every], smooth(losses)[every], color=own, linewidth=1.8, label=label)
        steps, losses = run[VALIDATION_LOSS]
        if len(steps):
            axes.plot(
                steps,
                losses,
                color=own,
                linestyle="--",
                linewidth=1.2,
                marker="o",
                markersize=4.5,
                markerfacecolor="white",
                label=f"{of}validation",
            )
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per target token")
    axes.legend(**({"ncols": 2, "fontsize": 7} if len(runs) > 2 else {}))


def smooth(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Centred moving average over a fortieth of the curve, shorter at its ends."""
    half = len(values) // 80
    sums = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    first, last = np.maximum(centre - half, 0), np.minimum(centre + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)
