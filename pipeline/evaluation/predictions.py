"""One system's predictions on disk: appended as they come, none lost, none twice.

While work goes on each process appends to `predictions-<system>.part-<rank>.jsonl`; when every
example is there, one process joins the parts, in the test set's order, into
`predictions-<system>.jsonl`, whose existence means complete.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.files import replace_text

Record = dict[str, Any]
DOCUMENT_START = 400  # characters of the document kept beside its prediction, for readers


class Predictions:
    """The predictions of `system` in `folder`; records are JSON objects with a unique `index`."""

    def __init__(self, folder: Path, system: str) -> None:
        self.folder, self.system = folder, system
        self.path = folder / f"predictions-{system}.jsonl"

    @property
    def complete(self) -> bool:
        """Whether every example has been predicted and scored."""
        return self.path.is_file()

    def read(self) -> list[Record]:
        """All records so far, by index; a line torn by a kill counts as missing."""
        paths = [self.path] if self.complete else self._parts()
        records = {record["index"]: record for path in paths for record in _whole_lines(path)}
        return [records[index] for index in sorted(records)]

    def append(self, records: Sequence[Record], rank: int) -> None:
        """Add records to this process's part."""
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with self._part(rank).open("ab") as file:
            file.write(lines.encode())

    def repair(self, rank: int) -> None:
        """Cut this process's part back to whole lines, before the first `append`."""
        path = self._part(rank)
        if path.is_file():
            content = path.read_bytes()
            with path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)

    def finish(self, count: int) -> None:
        """Join the parts, which must hold `count` examples, and delete them; one process calls."""
        records = self.read()
        if len(records) != count:
            raise RuntimeError(f"{self.system}: {len(records)} predictions of {count}")
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        replace_text(self.path, "".join(lines))
        for part in self._parts():
            part.unlink()

    def check_whole(self, count: int) -> None:
        """Raise ValueError unless the joined file holds the examples 0 to `count` - 1."""
        try:
            found = [record["index"] for record in self.read()]
        except (ValueError, KeyError, TypeError):
            found = []
        if found != list(range(count)):
            raise ValueError(
                f"{self.path} is damaged: {len(found)} readable predictions, expected {count}; "
                "delete it and run again"
            )

    def _part(self, rank: int) -> Path:
        return self.folder / f"predictions-{self.system}.part-{rank}.jsonl"

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob(f"predictions-{self.system}.part-*.jsonl"))


def _whole_lines(path: Path) -> list[Record]:
    content = path.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
