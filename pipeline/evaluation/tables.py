"""Nested settings as flat names, and rows as a Markdown table."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.evaluation.bootstrap import Interval
from pipeline.evaluation.page import hide_paths

ROUGE_COLUMNS = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "mean_rouge": "Mean ROUGE",
}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, its names joined by dots: {"train.seed": 0, ...}."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows under a header; `align` has an l (left) or an r (right) for each column."""
    rule = [":--" if side == "l" else "--:" for side in align]
    lines = [header, rule, *([cell.replace("|", "&#124;") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rouge_table(
    systems: Mapping[str, Mapping[str, Interval]],
    mean: str = "mean_rouge",
    with_interval: bool = False,
) -> str:
    """One row a system: the four ROUGE types and Mean ROUGE, the one called `mean`; percent F1.

    Mean ROUGE is shown `with_interval` where the table is to say how far chance reaches.
    """
    columns = [column for column in ROUGE_COLUMNS if column != "mean_rouge"]
    shown = ranged if with_interval else _value
    rows = [
        [name, *(_value(scores[column]) for column in columns), shown(scores[mean])]
        for name, scores in systems.items()
    ]
    return markdown_table(["system", *ROUGE_COLUMNS.values()], rows, align="lrrrrr")


def settings_table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a setting, one column a run."""
    names = dict.fromkeys(name for settings in columns.values() for name in settings)
    rows = [
        [f"`{name}`", *(_shown(settings.get(name)) for settings in columns.values())]
        for name in names
    ]
    return markdown_table(["setting", *columns], rows, align="l" * (1 + len(columns)))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return hide_paths(value) if isinstance(value, str) else json.dumps(value)


def _value(mean: Interval) -> str:
    return f"{mean['value']:.2f}"


def ranged(mean: Interval) -> str:
    """A mean and its interval as text: 9.75 (9.21 to 10.30)."""
    return f"{mean['value']:.2f} ({mean['low']:.2f} to {mean['high']:.2f})"


def signed(difference: Interval) -> str:
    """A difference and its interval as text: +1.23 (95 % interval +0.50 to +1.90)."""
    return (
        f"{difference['value']:+.2f} (95 % interval "
        f"{difference['low']:+.2f} to {difference['high']:+.2f})"
    )
