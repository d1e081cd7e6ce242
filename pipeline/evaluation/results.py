"""What evaluate.py left, read back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.evaluation.bootstrap import Interval
from pipeline.evaluation.tables import flatten, signed

RESULTS = "results.json"


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
