"""Results and settings that evaluate.py wrote, as the reports show them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.common.settings import flatten
from pipeline.reporting.json_file import read_json_object
from pipeline.scoring.bootstrap import Interval, signed
from pipeline.scoring.predictions import RESULTS

PERMUTED = "permuted"
SERIOUS = 0.1
"""Share of dropped letters from which the scores are said to compare only the rest."""


def read_results(folder: Path, systems: Sequence[str]) -> dict[str, Any]:
    """results.json of a complete evaluation; ValueError unless it has at least these systems."""
    path = folder / RESULTS
    results = {"systems": {}, **(read_json_object(path) if path.is_file() else {})}
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
    """An evaluation's settings by dotted name, without checksums."""
    return {
        name: value
        for name, value in flatten(results["settings"]).items()
        if not name.endswith(("sha256", "fingerprint"))
    }


def verdicts(results: Mapping[str, Any], mean: str) -> Iterator[str]:
    """The model against each other system, by the Mean ROUGE called `mean`: a sentence each."""
    for name, difference in results["model_minus"].items():
        if name == PERMUTED:
            yield permuted_verdict(difference[mean])
        elif name == "lead":
            yield verdict(difference[mean], first_sentences(results["settings"]["lead_sentences"]))
        else:
            yield verdict(difference[mean], "the document's first words")


def first_sentences(count: int) -> str:
    """What the system `lead` gives, in words."""
    return "the document's first " + ("sentence" if count == 1 else f"{count} sentences")


def verdict(minus: Interval, rival: str, model: str = "the model") -> str:
    """Who scores higher, in words, from the model's Mean ROUGE minus its rival's."""
    if minus["low"] > 0:
        found = f"{model} beats {rival}"
    elif minus["high"] < 0:
        found = f"{model} is beaten by {rival}"
    else:
        found = f"It is not clear that {model} beats {rival}, as the difference may be chance"
    return f"{found[0].upper()}{found[1:]}: Mean ROUGE {signed(minus)}."


def permuted_verdict(minus: Interval, model: str = "the model") -> str:
    """Whether the model uses its input: its Mean ROUGE minus its own given another document."""
    if minus["low"] > 0:
        found = f"{model} uses its document, as it scores higher than when given another one"
    else:
        found = (
            f"{model} may score as high when given another document, so there is no evidence that "
            "it uses its input"
        )
    return f"{found[0].upper()}{found[1:]}: Mean ROUGE {signed(minus)}."


def letters_line(results: Mapping[str, Any]) -> str:
    """The share of letters that rouge-score drops; empty for results of earlier versions."""
    found = results.get("letters_dropped")
    if not found:
        return ""
    shares = {"references": found["references"], **found["predictions"]}
    dropped = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
    most = max(shares.values())
    warning = " These scores compare only what is left." if most >= SERIOUS else ""
    return f"Letters that rouge-score drops, as it reads only a to z: {dropped}.{warning}"
