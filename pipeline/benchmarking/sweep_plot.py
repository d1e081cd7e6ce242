"""The picture of a sweep: time and memory against the length."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.benchmarking.cases import Row, label
from pipeline.reporting.length_plot import Curve, plot_curves


def draw(rows: Sequence[Row], panels: Mapping[str, str], path: Path) -> None:
    """Write a PNG with a panel for each field of the rows, given with its title."""
    shown = [row for row in rows if row["subject"] != "ratio"]  # measures the layer again
    plot_curves({title: curves(shown, field) for field, title in panels.items()}, path)


def curves(rows: Sequence[Row], field: str) -> dict[str, Curve]:
    """A curve for each label and mode that has the field or failed; inference is dashed."""
    found: dict[str, Curve] = {}
    some = [row for row in rows if field in row or "cross" in row]
    for rank, name in enumerate(dict.fromkeys(map(label, some))):
        own = [row for row in some if label(row) == name]
        for mode in dict.fromkeys(row["mode"] for row in own):
            chosen = [row for row in own if row["mode"] == mode]
            found[f"{name}, {mode}"] = Curve(
                points=[(row["length"], row[field]) for row in chosen if row.get(field, 0) > 0],
                crosses=[row["length"] for row in chosen if "cross" in row],
                rank=rank,
                dashed=mode == "inference",
            )
    return found
