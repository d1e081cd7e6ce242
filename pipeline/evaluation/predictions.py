"""One system's predictions on disk: appended as they come, none lost, none twice.

While work goes on each process appends to `predictions-<system>.part-<rank>.jsonl`: an example as
soon as it is written, its scores, in a line of the same `index`, when they are there. When every
example is there and scored, one process joins the parts, in the test set's order, into
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
    """The predictions of `system` in `folder`; a record is what the lines of its `index` hold."""

    def __init__(self, folder: Path, system: str) -> None:
        self.folder, self.system = folder, system
        self.path = folder / f"predictions-{system}.jsonl"

    @property
    def complete(self) -> bool:
        """Whether every example has been predicted and, where it has references, scored."""
        return self.path.is_file()

    def read(self) -> list[Record]:
        """All records so far, by index; a line torn by a kill counts as missing."""
        paths = [self.path] if self.complete else self._parts()
        lines = [line for path in paths for line in _whole_lines(path)]
        records: dict[int, Record] = {line["index"]: line for line in lines if "prediction" in line}
        for line in lines:
            if "prediction" not in line and line["index"] in records:
                records[line["index"]] |= line
        return [records[index] for index in sorted(records)]

    def append(self, records: Sequence[Record], rank: int) -> None:
        """Add records, or scores of records, to this process's part."""
        if not records:
            return
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
        if len(records) != count or any(map(lacks_scores, records)):
            scored = sum(not lacks_scores(record) for record in records)
            raise RuntimeError(
                f"{self.system}: {len(records)} predictions of {count}, {scored} scored"
            )
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        replace_text(self.path, "".join(lines))
        for part in self._parts():
            part.unlink()

    def check_whole(self, count: int) -> None:
        """Raise ValueError unless the joined file holds the examples 0 to `count` - 1."""
        try:
            found = [record["index"] for record in self.read() if not lacks_scores(record)]
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


def lacks_scores(record: Record) -> bool:
    """Whether it has references and was not scored against them yet."""
    return bool(record.get("references")) and "scores" not in record


def _whole_lines(path: Path) -> list[Record]:
    content = path.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
