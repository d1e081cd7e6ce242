"""The record of a comparison of systems, systems.json: every run of every cell, as it is made.

A cell is a case: one system at one length, mode and memory setting. Its row holds its runs, and for
each figure their median, least and most. Runs may be of several machines: each names its own, and
only runs of one machine are compared.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.benchmarking.cases import Case, Row
from pipeline.common.files import replace_json
from pipeline.common.paths import ROOT
from pipeline.common.settings import differences
from pipeline.reporting.json_file import read_json_object

FIGURES = ("wall_s", "cpu_s", "peak_gib", "total_gib", "tokens_per_s")
MEASURED_CODE = (
    "pipeline/model", "pipeline/baselines", "pipeline/benchmarking/cases.py",
    "pipeline/benchmarking/cheap_weights.py", "pipeline/distributed/device.py",
)  # fmt: skip
"""What a time or a peak depends on: runs of other versions of it do not stand in one record."""


class SystemRecord:
    """The rows of a record, written after each change. `settings` are those that all rows share;
    `device` is this machine's.

    Raises ValueError where the file has other settings, or is of another kind.
    """

    def __init__(self, path: Path, device: str, settings: Mapping[str, Any]) -> None:
        self.path, self.device = path, device
        self.content: dict[str, Any] = {
            "command": "systems", "device": device, "torch": settings["versions"]["torch"],
            "versions": settings["versions"], "settings": dict(settings), "rows": [],
        }  # fmt: skip
        if path.exists():
            self._take_rows(read_record(path))

    def _take_rows(self, found: Mapping[str, Any]) -> None:
        was, now = dict(found["settings"]), dict(self.content["settings"])
        for optional in [name for name, value in was.items() if value is None]:
            del was[optional], now[optional]  # was not there then, so no row depends on it
        for optional in [name for name, value in now.items() if value is None]:
            now[optional] = was[optional]  # is not there now, so it measures nothing
            self.content["settings"][optional] = was[optional]
        if changed := differences(was, now):
            raise ValueError(
                f"{self.path} was measured with other settings: {'; '.join(changed)}; give another "
                "--output, or its settings again"
            )
        self.content["rows"] = found["rows"]

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order in which their cells were first measured."""
        return self.content["rows"]

    def find(self, case: Case) -> Row | None:
        """The row of a case."""
        return next((row for row in self.rows if cell(row) == cell(asdict(case))), None)

    def has(self, case: Case, number: int) -> bool:
        """Whether a round of a case needs no run: it was made, or the case has a cross."""
        row = self.find(case)
        return row is not None and (
            "cross" in row or any(run["round"] == number for run in row["runs"])
        )

    def put(self, row: Row) -> None:
        """Set the row of a case, and write the file."""
        places = [place for place, other in enumerate(self.rows) if cell(other) == cell(row)]
        if places:
            self.rows[places[0]] = row
        else:
            self.rows.append(row)
        self.content["device"] = " and ".join(lengths_by_machine(self.rows)) or self.device
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self.path, self.content)

    def add(self, case: Case, found: Row, circumstances: Row) -> Row:
        """Add a run of a case, what it found and what was noted about it, to its row; the row."""
        row = self.find(case) or {**asdict(case), "runs": []}
        figures = {name: found[name] for name in FIGURES if name in found}
        others = {name: value for name, value in found.items() if name not in FIGURES}
        run = {**circumstances, "machine": self.device, **figures}
        if "cross" in found:
            run["cross"] = found["cross"]
        new = with_medians({**row, **others, "runs": [*row["runs"], run]})
        self.put(new)
        return new


def with_medians(row: Row) -> Row:
    """The row with each figure's median over its runs, `NAME_min` and `NAME_max`.

    A cross has no figures, whatever ran before it.
    """
    names = {f"{name}{end}" for name in FIGURES for end in ("", "_min", "_max")}
    new = {name: value for name, value in row.items() if name not in names}
    if "cross" in row:
        return new
    for name in FIGURES:
        values = [run[name] for run in row["runs"] if name in run]
        if values:
            new |= {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
    return new


def lengths_by_machine(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Each machine that runs were made on, with their lengths, shortest first."""
    found: dict[str, set[int]] = {}
    for row in rows:
        for run in row["runs"]:
            found.setdefault(run["machine"], set()).add(row["length"])
    return {machine: sorted(lengths) for machine, lengths in found.items()}


def cell(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row is found by: system, mode, memory setting and length."""
    return row["subject"], row["mode"], row["memory"], row["length"]


def read_record(path: Path) -> dict[str, Any]:
    """A record. Raises ValueError for another file."""
    found = read_json_object(path)
    rows = found.get("rows")
    known = isinstance(rows, list) and isinstance(found.get("settings"), dict)
    if not known or not all("runs" in row for row in rows or ()):
        raise ValueError(
            f"{path} is not a record of runs; give a folder without one, or one that this "
            "version of benchmark.py systems wrote"
        )
    return found


def code_fingerprint(parts: Sequence[str] = MEASURED_CODE) -> str:
    """Twelve hexadecimal digits of the sources that the figures depend on."""
    digest = hashlib.sha256()
    for part in parts:
        path = ROOT / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
