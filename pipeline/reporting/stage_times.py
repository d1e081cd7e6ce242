"""Commands and times of the stages that made what a report shows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.common.html import escape, hide_paths, markdown_table


@dataclass(frozen=True)
class StageTime:
    """A stage, its wall-clock seconds and the command that ran it."""

    name: str
    seconds: float
    command: str


def read_stages(path: Path) -> list[StageTime]:
    """The stages in a JSON list of {name, seconds, command}; ValueError on anything else."""
    try:
        return [StageTime(**stage) for stage in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is not a JSON list of {{name, seconds, command}}: {error}"
        ) from None


def stage_table(stages: Sequence[StageTime]) -> str:
    """A row a stage, with its seconds and command, and a row of the sum."""
    rows = [
        [stage.name, f"{stage.seconds:.1f}", f"<code>{escape(hide_paths(stage.command))}</code>"]
        for stage in stages
    ]
    rows.append(["all", f"{sum(stage.seconds for stage in stages):.1f}", ""])
    return markdown_table(["stage", "seconds", "command"], rows, align="lrl")
