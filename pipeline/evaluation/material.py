"""What the page beside the paper is made of: runs, evaluations, metrics, measurements, data."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.evaluation.page import escape
from pipeline.evaluation.paper import LOCOST, paper
from pipeline.evaluation.predictions import Predictions
from pipeline.evaluation.results import read_results
from pipeline.evaluation.runs import Run
from pipeline.shards import file_sha256

Results = dict[str, Any]
METRICS = ("bert_score", "blanc", "judge")
PRETRAINING = "pre-training"


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation folder holds: ROUGE's results, and those of other metrics."""

    results: Results
    metrics: list[Results] = field(default_factory=list)


@dataclass(frozen=True)
class Measurements:
    """What `benchmark.py systems` left: rows of one system, length and mode each."""

    device: str
    rows: list[dict[str, Any]]

    def find(self, system: str, mode: str, memory: str) -> dict[int, dict[str, Any]]:
        """A system's rows by length; "plain", or "saving" with every saving of memory."""
        wanted = (system, mode, memory)
        return {
            row["length"]: row
            for row in self.rows
            if (row["subject"], row["mode"], row.get("memory", "plain")) == wanted
        }

    @property
    def settings(self) -> str:
        """The device, and what all rows have in common, in words."""
        words = [self.device]
        for name, form in (
            ("dtype", "{}"),
            ("batch", "batch {}"),
            ("tokens", "{} target tokens"),
            ("threads", "{} threads"),
        ):
            found = {row.get(name) for row in self.rows}
            if len(found) == 1 and None not in found:
                words.append(form.format(*found))
        return ", ".join(words)

    @property
    def time(self) -> str:
        """The time to compare: others use a CPU's cores too."""
        return "cpu_s" if all(row.get("device") == "cpu" for row in self.rows) else "wall_s"

    @property
    def systems(self) -> list[str]:
        """Those measured, in their order."""
        return list(dict.fromkeys(row["subject"] for row in self.rows))


@dataclass(frozen=True)
class Material:
    """All the report is made of; `evaluations` by set, then by system."""

    pretrain: Run | None = None
    finetune: Mapping[str, Run] = field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, Evaluation]] = field(default_factory=dict)
    extrapolation: Mapping[str, Mapping[int, Evaluation]] = field(default_factory=dict)
    """Of arXiv, by system and by the tokens read."""
    contexts: Mapping[str, Mapping[int, Evaluation]] = field(default_factory=dict)
    """Of BookSum-Book, by system and by the tokens trained on."""
    measurements: Measurements | None = None
    manifests: Mapping[str, list[Results]] = field(default_factory=dict)
    """Of the shards, by set."""

    @property
    def locost(self) -> dict[str, Results]:
        """LOCOST's own results by set."""
        return {
            name: systems[LOCOST].results
            for name, systems in self.evaluations.items()
            if LOCOST in systems
        }

    def labelled(self) -> Iterator[tuple[str, Evaluation]]:
        """Every evaluation with what to call it."""
        for name in ordered(self.evaluations):
            for system, one in self.evaluations[name].items():
                of = "" if system == LOCOST else f", {system_title(system)}"
                yield f"{title(name)}{of}", one
        for kind, sweep in (("read at", self.extrapolation), ("trained at", self.contexts)):
            name = "arXiv" if sweep is self.extrapolation else "BookSum-Book"
            for system, by_tokens in sweep.items():
                for tokens, one in sorted(by_tokens.items()):
                    yield f"{name}, {system_title(system)} {kind} {tokens:,}", one

    @property
    def panels(self) -> dict[str, dict[str, Run]]:
        """The training runs, under the titles of the figure's panels."""
        pretraining = {PRETRAINING: self.pretrain} if self.pretrain else {}
        finetuning = {title(name): self.finetune[name] for name in ordered(self.finetune)}
        panels = {"Pre-training": pretraining, "Fine-tuning": finetuning}
        return {name: runs for name, runs in panels.items() if runs}

    @property
    def runs(self) -> dict[str, Run]:
        """The training runs, by the names that the tables give them."""
        return {name: run for runs in self.panels.values() for name, run in runs.items()}


def ordered(names: Mapping[str, Any]) -> list[str]:
    """The paper's sets in its order, then the others."""
    known = [name for name in paper().sets if name in names]
    return known + sorted(set(names) - set(known))


def title(name: str) -> str:
    """How the paper writes a set's name; other sets keep theirs."""
    return paper().sets[name].title if name in paper().sets else escape(name)


def system_title(name: str) -> str:
    """How the paper writes a system's name; others keep theirs."""
    return paper().systems.get(name) or escape(name)


def read_evaluation(folder: Path, name: str) -> Evaluation:
    """A complete evaluation of the model on the set `name`.

    Raises ValueError without one, and where it is of another of the paper's sets, or a metric is of
    other predictions.
    """
    results = read_results(folder, ("model",))
    found = results["settings"]["dataset"].get("set", "")
    if found != name and {found, name} <= paper().sets.keys():
        raise ValueError(f"{folder} is an evaluation of {found}, not of {name}")
    return Evaluation(results, list(_metrics(folder)))


def _metrics(folder: Path) -> Iterator[Results]:
    """The other metrics' results of the model's summaries, in the order of their names."""
    paths = [path for kind in METRICS for path in sorted(folder.glob(f"{kind}-model-*.json"))]
    if not paths:
        return
    digest = file_sha256(Predictions(folder, "model").path)
    for path in paths:
        found = _read_json(path)
        if not {"metric", "column", "scores", "settings"} <= found.keys():
            raise ValueError(f"{path} is not the result of a metric; delete it and run it again")
        if found["settings"].get("predictions_sha256") != digest:
            raise ValueError(f"{path} is of other summaries; delete it and run it again")
        yield found


def read_measurements(paths: Sequence[Path]) -> Measurements:
    """What `benchmark.py systems` wrote, at one or several times; of equal cases the last counts.

    Raises ValueError on another file, or on those of several devices.
    """
    needed = {"subject", "mode", "length"}
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    devices: dict[str, Path] = {}
    for path in paths:
        found = _read_json(path)
        rows = found.get("rows")
        if not isinstance(rows, list) or not all(
            isinstance(row, dict) and needed <= row.keys() for row in rows
        ):
            raise ValueError(
                f"{path} holds no rows of measurements; make it by benchmark.py systems"
            )
        devices[str(found.get("device", "a device not named"))] = path
        for row in rows:
            case = (row["subject"], row["mode"], row.get("memory", "plain"), row["length"])
            cases[case] = row
    if len(devices) != 1:
        listed = "; ".join(f"{path} of {device}" for device, path in devices.items())
        raise ValueError(f"measurements of several devices ({listed}); give those of one")
    return Measurements(next(iter(devices)), list(cases.values()))


def _read_json(path: Path) -> Results:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a JSON object")
    return found


def figure(row: Mapping[str, Any] | None, name: str) -> float | None:
    """A row's figure; None where there is no row, or none in it."""
    value = row.get(name) if row else None
    return value if isinstance(value, int | float) and math.isfinite(value) else None
