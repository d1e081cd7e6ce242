"""How far models read, as the reports show it: table, picture and words."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.common.html import markdown_table
from pipeline.common.plot_style import BOTH_AXES, colour, save
from pipeline.scoring.source_use import DOCUMENTS, NO_REFERENCE, TOO_SHORT, Rise

FIGURE = "source_use.png"
MEANING = (
    "Rise of the loss, in nats per target token, when a tenth of the source is exchanged for the "
    "same tenth of another document of similar length, with 95 % intervals by bootstrap over "
    "documents: 0 for a model that does not use that tenth."
)
COLUMNS = 2  # panels beside each other

Curves = Mapping[str, Sequence[Rise]]
"""The rises of several systems, by name."""


def sections(panels: Mapping[str, Curves]) -> Iterator[str]:
    """A page's section: the picture of all panels, and the table and words of each."""
    yield "## How far they read"
    if not panels:
        yield "Not measured: evaluate with --source_use_by_position."
        return
    yield MEANING
    yield f"![Rise of the loss by part of the source exchanged]({FIGURE})"
    for title, curves in panels.items():
        yield f"### {title}, by part of the source"
        yield rises_table(curves)
        yield " ".join(end_verdict(rises, system) for system, rises in curves.items())


def rises_table(curves: Curves) -> str:
    """One row a part of the source, one column a system."""
    rows = [
        [
            f"{parts[0]['from']:.0%} to {parts[0]['to']:.0%}",
            *(f"{one['rise']:+.4f} ({one['low']:+.4f} to {one['high']:+.4f})" for one in parts),
        ]
        for parts in zip(*curves.values(), strict=True)
    ]
    return markdown_table(["part of the source", *curves], rows, align="l" + "r" * len(curves))


def end_verdict(rises: Sequence[Rise], model: str = "the model") -> str:
    """Whether a model uses the end of its source, in words."""
    end = rises[-1]
    if end["low"] > 0:
        found = f"{model} uses the end of its sources: with another document's last tenth"
    else:
        found = f"there is no evidence that {model} uses the end of its sources: without it"
    return (
        f"{found[0].upper()}{found[1:]} its loss changes by {end['rise']:+.4f} nats per target "
        f"token (95 % interval {end['low']:+.4f} to {end['high']:+.4f})."
    )


def documents_line(results: Mapping[str, Any]) -> str:
    """How many documents were measured and left out."""
    counts = results[DOCUMENTS]
    reasons = {
        TOO_SHORT: "of fewer tokens than parts",
        NO_REFERENCE: "without a reference",
    }
    left_out = [f"{counts[name]:,} {what}" for name, what in reasons.items() if counts[name]]
    suffix = f"; left out: {', '.join(left_out)}" if left_out else ""
    return f"Measured on {counts['measured']:,} documents{suffix}."


def plot_rises(panels: Mapping[str, Curves], path: Path) -> None:
    """Write a PNG: a panel for each title, with a curve and its intervals for each system."""
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    with matplotlib.rc_context(BOTH_AXES):
        size = (7, 4.2) if len(panels) == 1 else (4.6 * columns, 3.6 * rows + 0.4)
        figure = Figure(figsize=size, layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for panel in axes[len(panels) :]:
            panel.remove()
        for panel, (title, curves) in zip(axes, panels.items(), strict=False):
            for name, rises in curves.items():
                _draw(panel, rises, name, colour(names.index(name)))
            panel.axhline(0, color="#555555", linewidth=0.8, zorder=0)
            panel.set_title(title)
            panel.set_xlim(0, 1)
            panel.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
            panel.set_xlabel("part of the source exchanged")
            panel.set_ylabel("rise of the loss, nats a token")
        named = {
            name: handle
            for panel in figure.axes
            for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(named.values(), named, loc="outside lower center", ncols=4)
        save(figure, path)


def _draw(axes: Axes, rises: Sequence[Rise], name: str, own: str) -> None:
    middles = [(one["from"] + one["to"]) / 2 for one in rises]
    axes.plot(middles, [one["rise"] for one in rises], color=own, marker="o", markersize=4,
              label=name)  # fmt: skip
    low, high = [one["low"] for one in rises], [one["high"] for one in rises]
    axes.fill_between(middles, low, high, color=own, alpha=0.15, linewidth=0)
