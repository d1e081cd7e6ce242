"""Records of long work on disk: appended as they come, none lost, none made twice.

The file is JSON lines: first `{"settings": ...}`, then one record an example, in the order in which
they were made, each with the example's `index`.
"""

import fcntl
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.evaluation.tables import flatten
from pipeline.files import flush_to_disk

Record = dict[str, Any]


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that tell one choice of settings from another."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


class Appended:
    """The records made so far, by index, and the file they are appended to, held by one process.

    A line torn by a kill counts as not there and is cut off. Raises ValueError when another process
    holds the file, it was begun with other settings, or it is damaged.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._file = path.open("a+b")
        try:
            self._hold()
            self.records = self._read(settings)
        except BaseException:
            self._file.close()
            raise

    def append(self, record: Record) -> None:
        """Add one record, on disk when this returns."""
        self._write(record)
        self.records[record["index"]] = record

    def __enter__(self) -> "Appended":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.records:
            self.path.unlink(missing_ok=True)  # nothing was made
        self._file.close()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{self.path}: another process is at it; wait for its end") from None

    def _read(self, settings: Mapping[str, Any]) -> dict[int, Record]:
        self._file.seek(0)
        content = self._file.read()
        self._file.truncate(content.rfind(b"\n") + 1)
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        if not lines:
            self._write({"settings": settings})
            return {}
        try:
            header, *records = map(json.loads, lines)
            begun, made = header["settings"], {record["index"]: record for record in records}
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.path} is damaged; move it away and run again") from None
        was, now = flatten(begun), flatten(settings)
        differences = [
            f"{name} was {was.get(name)}, now {now.get(name)}"
            for name in {**was, **now}
            if was.get(name) != now.get(name)
        ]
        if differences:
            raise ValueError(
                f"{self.path} was begun otherwise ({'; '.join(differences)}); go on as it began, "
                "or move it away"
            )
        return made

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        flush_to_disk(self._file)
