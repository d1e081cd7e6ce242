"""What the step was predicted to take on an H100, beside what was measured before and after."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.benchmarking.gpu_rows import Row
from pipeline.common.paths import ROOT

EARLIER = ROOT / "benchmarks" / "h100" / "gpu_check.json"
"""The record of the code that the predictions start from."""
HEAD = "| base model, bf16, one H100 |"
"""Begins the table, by which a page is found to hold it."""


class Prediction(NamedTuple):
    """A figure of the GPU check, by section and by fields of its row."""

    text: str
    predicted: str
    section: str
    fields: Row
    figure: Callable[[Row], float]
    form: str


def _training(text: str, predicted: str, figure: Callable[[Row], float], form: str) -> Prediction:
    fields = {"L": 4096, "B": 16}
    return Prediction(text, predicted, "time: training", fields, figure, form)


def _inference(length: int, predicted: str) -> Prediction:
    return Prediction(
        f"summaries of 512 tokens, {length:,} positions", predicted, "time: inference",
        {"L": length}, lambda row: row["samples_per_s"], "{:.3g} samples/s",
    )  # fmt: skip


PREDICTIONS = (
    _training("training step, 16 x 4,096 / 512", "200 ms", lambda row: row["ms"], "{:.0f} ms"),
    _training(
        "the same", "80 samples/s", lambda row: row["samples_per_s"], "{:.1f} samples/s"
    ),
    _training("the same, MFU", "24 %", lambda row: 100 * row["mfu"], "{:.1f} %"),
    Prediction(
        "greedy decoding step, 16 x 4,096", "2.3 ms", "time: inference", {"L": 4096},
        lambda row: row["step_ms"], "{:.1f} ms",
    ),
    _inference(4096, "12.7 samples/s"),
    _inference(16384, "3.1 samples/s"),
)  # fmt: skip


def read_record(path: Path) -> dict[str, Any]:
    """A gpu_check.json. Raises ValueError for another file."""
    try:
        found = json.loads(path.read_bytes())
        found["device"], found["sections"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a record of the GPU check ({type(error).__name__}: {error}); give the "
            "gpu_check.json that `make gpu-check` writes"
        ) from error
    return found


def table(earlier: dict[str, Any], measured: dict[str, Any] | None = None) -> Iterator[str]:
    """The table in Markdown; the last column is empty without a record of the present code."""
    of = f"measured, {measured['device']}" if measured else "measured"
    yield f"{HEAD} predicted | earlier code, recorded | {of} |"
    yield "|---|---|---|---|"
    for one in PREDICTIONS:
        cells = (one.text, one.predicted, recorded(one, earlier), recorded(one, measured))
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def recorded(one: Prediction, results: dict[str, Any] | None) -> str:
    """A prediction's figure in a record; empty where that has none."""
    rows = results["sections"].get(one.section, []) if results else []
    for row in rows:
        if all(row.get(name) == value for name, value in one.fields.items()):
            try:
                return one.form.format(one.figure(row))
            except KeyError:  # no MFU for an unknown card, no time where memory ran out
                return ""
    return ""


def refreshed(page: str, lines: list[str]) -> str:
    """The page with its table replaced. Raises ValueError where it has none."""
    old = page.splitlines()
    starts = [number for number, line in enumerate(old) if line.startswith(HEAD)]
    if len(starts) != 1:
        raise ValueError(f"the page has {len(starts)} tables that begin with {HEAD!r}, expected 1")
    start = stop = starts[0]
    while stop < len(old) and old[stop].startswith("|"):
        stop += 1
    return "\n".join([*old[:start], *lines, *old[stop:], ""])
