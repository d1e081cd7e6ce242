"""The scores of all systems in one summary: the content of results.json."""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from pipeline.common.settings import flatten
from pipeline.scoring import rouge
from pipeline.scoring.predictions import RESULTS, Record
from pipeline.scoring.source_use import BY_POSITION

SUBMISSION = "scrolls_submission.json"
TRAINED = "trained_source_length"
VERSIONS = ("torch", "numpy", "sentencepiece", "rouge-score")


def find_results(
    output: Path, systems: Sequence[str], submission: bool = False, by_position: bool = False
) -> dict[str, Any] | None:
    """The results in the output folder, if they are complete; None otherwise."""
    path = output / RESULTS
    if not path.is_file():
        return None
    results = json.loads(path.read_text(encoding="utf-8"))
    scored = results["examples"] == 0 or results["systems"].keys() >= set(systems)
    written = not submission or (output / SUBMISSION).is_file()
    measured = not by_position or BY_POSITION in results
    return results if scored and written and measured else None


def environment(device: torch.device) -> dict[str, str]:
    """Versions and device, on which the numbers may depend in addition to the settings."""
    versions = {package: version(package) for package in VERSIONS}
    return {"python": platform.python_version(), **versions, "device": device.type}


def trained_length(checkpoint: Path) -> dict[str, int]:
    """As `trained_source_length`, the source tokens that the checkpoint's run trained on (0: as
    many as its shards have); nothing of a model folder without its run."""
    config = checkpoint.resolve().parent.parent / "config.yaml"  # RUN/checkpoints/STEP
    if not config.is_file():
        return {}
    settings = flatten(yaml.safe_load(config.read_text(encoding="utf-8")) or {})
    length = settings.get("data.source_length")
    return {TRAINED: length} if isinstance(length, int) else {}


def summarise(systems: dict[str, list[Record]]) -> dict[str, Any]:
    """Means and intervals of each system, and the model's paired difference from the others.

    Over the documents that have references; where none has, there are no scores.
    """
    everything = systems
    systems = {
        name: scored
        for name, records in systems.items()
        if (scored := [record for record in records if record["references"]])
    }
    scores = {name: [record["scores"] for record in records] for name, records in systems.items()}
    some = next(iter(systems.values()), [])
    return {
        "examples": len(some),
        "unit": "F1, percent; mean over a document's references, then over documents",
        "systems": {name: rouge.aggregate(values) for name, values in scores.items()},
        # As SCROLLS counts: the best of a document's references, and the geometric mean of the
        # means of ROUGE-1, -2 and -L.
        "best_over_references": {
            name: rouge.aggregate([record["best"] for record in records])
            for name, records in systems.items()
        },
        "model_minus": {
            name: rouge.compare(scores["model"], values)
            for name, values in scores.items()
            if "model" in scores and name != "model"
        },
        # rouge-score reads only ASCII letters and digits: the rest of a text has no score.
        "predictions_without_words": {
            name: sum(not rouge.readable(record["prediction"]) for record in records)
            for name, records in everything.items()
        },
        "empty_predictions": {
            name: sum(not record["prediction"].strip() for record in records)
            for name, records in everything.items()
        },
        "letters_dropped": {
            "references": rouge.letters_dropped(
                text for record in some for text in record["references"]
            ),
            "predictions": {
                name: rouge.letters_dropped(record["prediction"] for record in records)
                for name, records in systems.items()
            },
        },
        # Evaluations made before summaries were marked lack the mark.
        "cut_predictions": {
            name: sum(record.get("cut", False) for record in records)
            for name, records in everything.items()
        },
        "references_without_words": sum(
            not rouge.readable(text) for record in some for text in record["references"]
        ),
    }
