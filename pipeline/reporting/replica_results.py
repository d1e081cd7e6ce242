"""The replica's results as small JSON files: of each system's search, and of each of its seeds.

A seed's file has the scores of every test document, so that all figures of the page come from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.evaluation.examples import Examples
from pipeline.reporting.evaluation_reader import read_results
from pipeline.reporting.json_file import read_json_object
from pipeline.reporting.measurements import Measurements, read_measurements
from pipeline.reporting.run_reader import (
    LOSS,
    SOURCE_USE,
    VALIDATION_LOSS,
    VALIDATION_ROUGE,
    Run,
    read_run,
)
from pipeline.scoring.predictions import Predictions
from pipeline.scoring.source_use import Losses
from pipeline.shards import Dataset

MODEL, PERMUTED = "model", "permuted"
TRIVIAL = {"lead": "name, the first line", "lead_words": "first words"}
"""Systems that read little: the first line is the name of the module or class."""
COLUMNS = ("rouge1", "rouge2", "rougeLsum")
MEAN = "mean_rouge"
CHOSEN = (
    "train.peak_lr", "train.embedding_lr_scale", "model.cross_attention_initialisation",
    "model.ssm_dt_min", "model.ssm_dt_max",
)  # fmt: skip
DIGITS = 4


def search_result(folder: Path, system: str) -> dict[str, Any]:
    """The trials of a system's search, and the settings that are chosen: by the lowest validation
    loss of the pre-trainings, then of the fine-tunings. Raises ValueError where a trial is missing.
    """
    found: dict[str, Any] = {"system": system}
    for kind, pattern in (("pretrain", "trial-c*"), ("finetune", "trial-rate-*")):
        trials = [
            _trial(path, kind) for path in sorted((folder / system).glob(f"{pattern}/{kind}"))
        ]
        if not trials:
            raise ValueError(f"{folder / system} has no trials of a {kind}; run them first")
        best = min(trials, key=lambda trial: trial["validation_loss"])
        found[kind] = {"settings": best["settings"], "chosen": best["name"], "trials": trials}
    rate = found["finetune"]["settings"]["train.peak_lr"]
    found["finetune"]["settings"] = {"train.peak_lr": rate}
    return found


def _trial(folder: Path, kind: str) -> dict[str, Any]:
    run = read_run(folder)
    return {
        "name": folder.parent.name,
        "settings": {name: run.settings[name] for name in CHOSEN if name in run.settings},
        **_last(run), "steps": int(run[LOSS].steps[-1]), "kind": kind,
    }  # fmt: skip


def _last(run: Run) -> dict[str, float]:
    """A run's last validation: loss, source use, Mean ROUGE, where it has them."""
    names = {VALIDATION_LOSS: "validation_loss", SOURCE_USE: "source_use",
             VALIDATION_ROUGE: "mean_rouge"}  # fmt: skip
    return {
        name: round(float(run[metric].values[-1]), DIGITS)
        for metric, name in names.items()
        if len(run[metric].values)
    }


def seed_result(folder: Path, system: str, seed: int) -> dict[str, Any]:
    """What a system's trainings with a seed gave. Raises ValueError where a part is missing."""
    run = folder / system / f"seed-{seed}"
    evaluation = run / "evaluation"
    names = (MODEL, PERMUTED, *TRIVIAL)
    results = read_results(evaluation, names)
    test = Dataset(folder / "shards" / "test")
    scores = {
        name: {
            column: [round(record["scores"][column], DIGITS) for record in read]
            for column in COLUMNS
        }
        for name in names
        for read in [Predictions(evaluation, name).read()]
    }
    count = len(scores[MODEL][COLUMNS[0]])
    whole = Examples(test, source_length=0, limit=count)
    losses = Losses(evaluation, MODEL)
    return {
        "system": system, "seed": seed, "test_set": test.fingerprint,
        "lengths": [len(whole[index].source) for index in range(count)],
        "reference_words": _reference_words(test, count),
        "pretrain": _last(read_run(run / "pretrain")),
        "finetune": _last(read_run(run / "finetune")),
        "settings": {kind: read_run(run / kind).settings for kind in ("pretrain", "finetune")},
        "scores": scores,
        "losses": [
            {**record, "losses": [round(loss, DIGITS) for loss in record["losses"]]}
            if "losses" in record else record
            for record in (losses.read() if losses.complete else ())
        ],
        "letters": results.get("letters_dropped"),
        "example": _example(evaluation),
    }  # fmt: skip


def _reference_words(test: Dataset, count: int) -> list[int]:
    return [len(" ".join(test[i].metadata["references"]).split()) for i in range(count)]


def _example(evaluation: Path) -> dict[str, str]:
    """The first document's prediction, and its reference."""
    record = next(iter(Predictions(evaluation, MODEL).read()))
    return {"prediction": record["prediction"], "reference": record["references"][0]}


@dataclass(frozen=True)
class ReplicaResults:
    """Everything the page shows."""

    settings: dict[str, Any]
    searches: dict[str, dict[str, Any]]
    """By system."""
    seeds: dict[str, list[dict[str, Any]]]
    """By system, in the order of the seeds."""
    measurements: Measurements | None

    @property
    def lengths(self) -> np.ndarray:
        """(N,) source tokens of each test document, before truncation."""
        return np.array(next(iter(self.seeds.values()))[0]["lengths"])

    @property
    def reference_words(self) -> np.ndarray:
        """(N,) words of each reference."""
        return np.array(next(iter(self.seeds.values()))[0]["reference_words"])

    def groups(self, column: str = MEAN) -> dict[str, dict[str, np.ndarray]]:
        """The scores (seeds, N) of each system's model, with its own and with another document,
        and (1, N) of the trivial systems, as `seed_intervals` takes them."""
        found = {
            system: {
                name: np.array([_column(seed["scores"][name], column) for seed in seeds])
                for name in (MODEL, PERMUTED)
            }
            for system, seeds in self.seeds.items()
        }
        first = next(iter(self.seeds.values()))[0]["scores"]
        return found | {name: {MODEL: np.array([_column(first[name], column)])} for name in TRIVIAL}


def _column(scores: dict[str, Sequence[float]], column: str) -> np.ndarray:
    """(N,) one ROUGE type, or the Mean ROUGE, of each document."""
    if column == MEAN:
        return np.mean([scores[name] for name in COLUMNS], axis=0)
    return np.array(scores[column])


def read_replica(folder: Path) -> ReplicaResults:
    """The results in a folder, of as many systems and seeds as are complete.

    Raises ValueError where there are none, or they are of different test sets.
    """
    settings = read_json_object(folder / "settings.json")
    systems = list(settings["systems"])
    seeds = {
        system: [read_json_object(path) for path in sorted(folder.glob(f"{system}-[0-9].json"))]
        for system in systems
    }
    seeds = {system: found for system, found in seeds.items() if found}
    sets = {seed["test_set"] for found in seeds.values() for seed in found}
    if len(sets) != 1:
        raise ValueError(
            f"{folder} has results of {len(sets)} test sets, expected one; run "
            "`python pipeline/replica.py`"
        )
    searches = {
        system: read_json_object(path)
        for system in systems
        if (path := folder / f"search-{system}.json").exists()
    }
    measured = folder / "systems.json"
    return ReplicaResults(
        settings, searches, seeds, read_measurements([measured]) if measured.exists() else None
    )
