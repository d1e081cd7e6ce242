"""Records of a long job on disk: appended as they are made, so that it resumes without repeats.

The file is JSON lines: first `{"settings": ...}`, then one record per example, in the order in
which they were made, each with the example's `index`.
"""

import fcntl
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.common.files import flush_to_disk, json_bytes
from pipeline.common.settings import differences

Record = dict[str, Any]


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that identify these settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


class JsonlStore:
    """The records made so far, by index, and the file they are appended to, locked by one process.

    A line left incomplete by a kill is discarded. Raises ValueError when another process holds the
    file, it was started with other settings, or it is damaged.
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
        """Add one record; it is on disk when this returns."""
        self._write(record)
        self.records[record["index"]] = record

    def __enter__(self) -> "JsonlStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.records:
            self.path.unlink(missing_ok=True)  # no record
        self._file.close()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{self.path}: another process is using it; wait until it ends"
            ) from None

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
            started, made = header["settings"], {record["index"]: record for record in records}
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.path} is damaged; move it away and run again") from None
        if changes := differences(started, settings):
            raise ValueError(
                f"{self.path} was started with other settings ({'; '.join(changes)}); use those, "
                "or move it away"
            )
        return made

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json_bytes(record))
        flush_to_disk(self._file)
