"""What evaluate.py leaves: the scores of all systems in one summary, written and read back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.evaluation import rouge
from pipeline.evaluation.bootstrap import Interval
from pipeline.evaluation.predictions import Record
from pipeline.evaluation.tables import flatten, signed

RESULTS = "results.json"


def summarise(systems: dict[str, list[Record]]) -> dict[str, Any]:
    """Means and intervals of each system, the model's paired difference from the others.

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
        # As SCROLLS counts: the best of a document's references, and over the means of ROUGE-1, -2
        # and -L the geometric mean.
        "best_over_references": {
            name: rouge.aggregate([record["best"] for record in records])
            for name, records in systems.items()
        },
        "model_minus": {
            name: rouge.compare(scores["model"], values)
            for name, values in scores.items()
            if "model" in scores and name != "model"
        },
        # rouge-score reads ASCII letters and digits only: these score 0 whatever they say.
        "predictions_without_words": {
            name: sum(not rouge.readable(record["prediction"]) for record in records)
            for name, records in everything.items()
        },
        "empty_predictions": {
            name: sum(not record["prediction"].strip() for record in records)
            for name, records in everything.items()
        },
        "references_without_words": sum(
            not rouge.readable(text) for record in some for text in record["references"]
        ),
    }


def read_results(folder: Path, systems: Sequence[str]) -> dict[str, Any]:
    """A complete evaluation of at least the given systems. Raises ValueError without one."""
    path = folder / RESULTS
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    results = {"systems": {}, **found}
    if results.get("examples") == 0:
        raise ValueError(f"{folder} has no scores: none of its documents has a reference")
    missing = [system for system in systems if system not in results["systems"]]
    if missing:
        raise ValueError(
            f"{folder} has no results of {', '.join(missing)}; run `python pipeline/evaluate.py "
            f"--output {folder}` with them in --systems"
        )
    return results


def shown_settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's settings by dotted name, without digests."""
    return {
        name: value
        for name, value in flatten(results["settings"]).items()
        if not name.endswith(("sha256", "fingerprint"))
    }


def verdict(permuted: Interval) -> str:
    """Whether the input matters, by the model's difference from itself given another document."""
    if permuted["low"] > 0:
        found = "The true document scores above the permuted one"
    elif permuted["value"] > 0:
        found = "The true document scores above the permuted one, but within chance"
    else:
        found = (
            "The true document does **not** score above the permuted one: that the model reads "
            "its input does not show in its summaries"
        )
    return f"{found}: Mean ROUGE {signed(permuted)}."
