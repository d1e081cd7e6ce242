"""Markdown tables of scores and settings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.reporting.html import hide_paths
from pipeline.scoring.bootstrap import Interval, ranged

ROUGE_COLUMNS = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "mean_rouge": "Mean ROUGE",
}


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows under a header; `align` has one letter a column: l (left) or r (right)."""
    rule = [":--" if side == "l" else "--:" for side in align]
    lines = [header, rule, *([cell.replace("|", "&#124;") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rouge_table(systems: Mapping[str, Mapping[str, Interval]], mean: str = "mean_rouge") -> str:
    """One row a system: F1 in percent, with 95 % intervals, of the four ROUGE types and of the
    Mean ROUGE called `mean`."""
    columns = [*(column for column in ROUGE_COLUMNS if column != "mean_rouge"), mean]
    rows = [
        [name, *(ranged(scores[column]) for column in columns)] for name, scores in systems.items()
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
