"""Time and memory of whole systems, as `benchmark.py systems` measured them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.reporting.json_file import read_json_object


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
        """The time to compare: CPU seconds where all ran on a CPU, which others may use too."""
        return "cpu_s" if all(row.get("device") == "cpu" for row in self.rows) else "wall_s"

    @property
    def systems(self) -> list[str]:
        """The systems measured, in the order of their first rows."""
        return list(dict.fromkeys(row["subject"] for row in self.rows))


def read_measurements(paths: Sequence[Path]) -> Measurements:
    """The rows of one or more systems.json; of equal cases the last counts.

    Raises ValueError on another kind of file, and on measurements of several devices.
    """
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    devices: dict[str, Path] = {}
    for path in paths:
        found = read_json_object(path)
        rows = found.get("rows", [])
        if not _are_measurements(rows):
            raise ValueError(
                f"{path} holds no rows of measurements; make it with benchmark.py systems"
            )
        devices[str(found.get("device", "a device not named"))] = path
        for row in rows:
            case = (row["subject"], row["mode"], row.get("memory", "plain"), row["length"])
            cases[case] = row
    if len(devices) != 1:
        listed = "; ".join(f"{path} of {device}" for device, path in devices.items())
        raise ValueError(f"measurements of several devices ({listed}); give those of one")
    return Measurements(next(iter(devices)), list(cases.values()))


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
