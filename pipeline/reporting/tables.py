"""Markdown tables of scores and settings."""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.common.html import hide_paths, markdown_table
from pipeline.scoring.bootstrap import Interval, ranged

ROUGE_COLUMNS = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "mean_rouge": "Mean ROUGE",
}


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
