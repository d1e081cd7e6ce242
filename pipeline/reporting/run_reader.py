"""Training runs as the reports show them: losses, validation, time and energy."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from pipeline.common.html import markdown_table
from pipeline.common.settings import flatten

LAST_SHARE = 20  # the last loss of a run is the mean over its last 1/20 of the steps
LOSS_NOTE = (
    f"Losses are in nats per target token, the last training loss is the mean over the last "
    f"1/{LAST_SHARE} of the steps, Mean ROUGE is in percent."
)
LOSS, VALIDATION_LOSS, VALIDATION_ROUGE = "loss", "validation_loss", "validation_mean_rouge"
SOURCE_USE = "validation_source_use"
SECONDS, PROCESS_SECONDS = "step_and_save_seconds", "process_seconds"
ENERGY, CARBON = "energy_kwh", "carbon_kg"
MEASURED = (LOSS, VALIDATION_LOSS, VALIDATION_ROUGE, SOURCE_USE, ENERGY, CARBON)


class Series(NamedTuple):
    """One metric of a run: steps (N,) and values (N,)."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Run:
    """A training run: settings by dotted name, metrics by name (missing values left out)."""

    settings: dict[str, Any]
    metrics: dict[str, Series]
    finished: bool

    def __getitem__(self, name: str) -> Series:
        """A metric, empty where the run has no such metric."""
        return self.metrics.get(name, Series(np.empty(0, int), np.empty(0)))


def read_run(folder: Path) -> Run:
    """A run folder's config.yaml and metrics.jsonl. Raises ValueError where it has no loss."""
    try:
        settings = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder / 'config.yaml'} is not YAML: {reason}") from None
    path = folder / "metrics.jsonl"
    steps, values = defaultdict(list), defaultdict(list)
    for line in _lines(path):
        for name, value in _measured(line):
            steps[name].append(line["step"])
            values[name].append(value)
    if not steps[LOSS]:
        raise ValueError(f"{path} holds no loss; train the run first")
    metrics = {name: Series(np.array(steps[name]), np.array(values[name])) for name in values}
    return Run(flatten(settings), metrics, (folder / "FINISHED").is_file())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a file that may be growing: an unfinished last line is left out."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return
            try:
                read = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from None
            if not isinstance(read, dict) or "step" not in read:
                raise ValueError(f"{path}, line {number} has no step")
            yield read


def _measured(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The metrics of a line that reports use; null means a skipped update."""
    for name in MEASURED:
        if line.get(name) is not None:
            yield name, line[name]
    if "seconds" in line:
        seconds = line["seconds"] + line.get("checkpoint_seconds", 0.0)
        yield SECONDS, seconds
        if "processes" in line:
            yield PROCESS_SECONDS, seconds * line["processes"]


def loss_table(runs: Mapping[str, Run]) -> str:
    """First and last training loss of each run, best validation loss and Mean ROUGE, source use.

    Source use (`train.validation_source_use`) is the last one; the column is left out where no run
    has it.
    """
    header = ["run", "steps", "first loss", "last loss", "best validation loss"]
    uses = any(len(run[SOURCE_USE].values) for run in runs.values())
    rows = []
    for name, run in runs.items():
        steps, losses = run[LOSS]
        last = losses[-max(1, len(losses) // LAST_SHARE) :]
        validation, rouge = run[VALIDATION_LOSS].values, run[VALIDATION_ROUGE].values
        use = run[SOURCE_USE].values
        rows.append(
            [
                name,
                str(steps[-1]),
                f"{losses[0]:.3f}",
                f"{last.mean():.3f}",
                f"{validation.min():.3f}" if len(validation) else "",
                f"{100 * rouge.max():.2f}" if len(rouge) else "",
                *([f"{use[-1]:.3f}" if len(use) else ""] if uses else []),
            ]
        )
    header = [*header, "best validation Mean ROUGE", *(["source use"] if uses else [])]
    return markdown_table(header, rows, align="l" + "r" * (len(header) - 1))


def cost(run: Run) -> list[float | None]:
    """Hours, process-hours, kWh and kg of CO2 of a run; None where not recorded at every step.

    Energy and CO2 are the run's own running totals, which end where a device could not be read.
    """
    seconds, process_seconds = run[SECONDS].values, run[PROCESS_SECONDS].values
    everywhere = 0 < len(seconds) == len(process_seconds)
    return [
        seconds.sum() / 3600 if len(seconds) else None,
        process_seconds.sum() / 3600 if everywhere else None,
        *(_total(run[kind], run[SECONDS]) for kind in (ENERGY, CARBON)),
    ]


def _total(running: Series, seconds: Series) -> float | None:
    """The last of running totals, if they reach the last step."""
    whole = max(running.steps, default=0) == max(seconds.steps, default=None)
    return running.values[-1] if whole else None


def cost_table(costs: Mapping[str, Sequence[float | None]]) -> str:
    """A row a run, with the figures of `cost`; empty where not recorded."""
    rows = [
        [name, *("" if figure is None else f"{figure:,.1f}" for figure in figures)]
        for name, figures in costs.items()
    ]
    return markdown_table(["run", "hours", "process-hours", "kWh", "kg CO2"], rows, align="lrrrr")
