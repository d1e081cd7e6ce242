"""Time and memory of whole systems, as `benchmark.py systems` measured them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.reporting.equal_settings import (
    check_equal,
    kernel_words,
    precision_words,
    recomputation_words,
    shared_words,
)
from pipeline.reporting.json_file import read_json_object

MODES = ("inference", "training")
MEMORIES = ("plain", "saving")


@dataclass(frozen=True)
class Measurements:
    """Rows of `benchmark.py systems`, each of one system, length, mode and memory setting."""

    device: str
    rows: list[dict[str, Any]]

    def find(self, system: str, mode: str, memory: str) -> dict[int, dict[str, Any]]:
        """A system's rows by length; `memory` is "plain", or "saving" with every saving it has."""
        wanted = (system, mode, memory)
        return {
            row["length"]: row
            for row in self.rows
            if (row["subject"], row["mode"], row.get("memory", "plain")) == wanted
        }

    @property
    def settings(self) -> str:
        """The device and the settings that all rows share, in words."""
        return shared_words(self.device, self.rows)

    def own_words(self, system: str, memory: str) -> str:
        """Kernel, precision and recomputation of a system's rows; empty where none ran."""
        rows = self.those(memory, system)
        words = (kernel_words(rows), precision_words(rows), recomputation_words(rows))
        return ", ".join(words) if words[0] else ""

    def those(self, memory: str, system: str | None = None) -> list[dict[str, Any]]:
        """The rows of a memory setting, of one system or of all."""
        return [
            row
            for row in self.rows
            if row.get("memory", "plain") == memory and system in (None, row["subject"])
        ]

    @property
    def time(self) -> str:
        """The time to compare: CPU seconds where all ran on a CPU, which others may use too."""
        return "cpu_s" if all(row.get("device") == "cpu" for row in self.rows) else "wall_s"

    @property
    def systems(self) -> list[str]:
        """The systems measured, in the order of their first rows."""
        return list(dict.fromkeys(row["subject"] for row in self.rows))


def read_measurements(paths: Sequence[Path]) -> Measurements:
    """The rows of one or more systems.json; of equal cases the last counts.

    Raises ValueError on another kind of file, and on rows that cannot be compared: of several
    devices, library versions, types, batch sizes, target lengths or numbers of threads.
    """
    files = {path: read_json_object(path) for path in paths}
    for path, found in files.items():
        if not _are_measurements(found.get("rows", [])):
            raise ValueError(
                f"{path} holds no rows of measurements; make it with benchmark.py systems"
            )
    check_equal(files)
    cases = {
        (row["subject"], row["mode"], row.get("memory", "plain"), row["length"]): row
        for found in files.values()
        for row in found["rows"]
    }
    device = next(iter(files.values())).get("device", "a device not named")
    return Measurements(str(device), list(cases.values()))


def _are_measurements(rows: Any) -> bool:
    needed = {"subject", "mode", "length"}
    return (
        isinstance(rows, list)
        and len(rows) > 0
        and all(isinstance(row, dict) and needed <= row.keys() for row in rows)
    )


def figure(row: Mapping[str, Any] | None, name: str) -> float | None:
    """A row's figure; None without a row, or where it has none."""
    value = row.get(name) if row else None
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def extremes(row: Mapping[str, Any], name: str) -> tuple[float, float]:
    """The least and the most of a figure over its runs; of a single run both are the figure."""
    value = figure(row, name)
    assert value is not None
    least, most = (figure(row, f"{name}_{end}") for end in ("min", "max"))
    return value if least is None else least, value if most is None else most
