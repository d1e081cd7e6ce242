"""One system's predictions on disk: appended as they are made, none lost or duplicated.

During an evaluation each process appends examples to `predictions-<system>.part-<rank>.jsonl` and
their scores, once computed, to `scores-<system>.part-<rank>.jsonl`. When every example is predicted
and scored, one process joins the parts, in the test set's order, into `predictions-<system>.jsonl`,
whose existence means complete.
"""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.common.files import json_bytes, replace_bytes

Record = dict[str, Any]
RESULTS = "results.json"  # written to the same folder once the evaluation is complete
PREDICTIONS, SCORES = "predictions", "scores"
DOCUMENT_START = 400  # characters of the document stored with its prediction, for readers


class Predictions:
    """The predictions of `system` in `folder`; records are JSON objects with a unique `index`."""

    kinds: tuple[str, ...] = (PREDICTIONS, SCORES)
    """What the parts hold, by the beginning of their names; all of it is joined under the first."""

    def __init__(self, folder: Path, system: str) -> None:
        self.folder, self.system = folder, system
        self.path = folder / f"{self.kinds[0]}-{system}.jsonl"

    @property
    def complete(self) -> bool:
        """Whether every example has been predicted and, where it has references, scored."""
        return self.path.is_file()

    def read(self) -> list[Record]:
        """All records so far, by index; a line left incomplete by a kill counts as missing."""
        if self.complete:
            records = {record["index"]: record for record in _whole_lines(self.path)}
        else:
            written, *more = (
                [line for path in self._parts(kind) for line in _whole_lines(path)]
                for kind in self.kinds
            )
            records = {record["index"]: record for record in written}
            for line in chain.from_iterable(more):
                if line["index"] in records:
                    records[line["index"]] |= line
        return [records[index] for index in sorted(records)]

    def append(self, records: Sequence[Record], rank: int) -> None:
        """Add records to this process's part."""
        self._append(self.kinds[0], records, rank)

    def append_scores(self, scores: Sequence[Record], rank: int) -> None:
        """Add scores, each with its record's `index`, to this process's part."""
        self._append(SCORES, scores, rank)

    def _append(self, kind: str, records: Sequence[Record], rank: int) -> None:
        if not records:
            return
        with self._part(kind, rank).open("ab") as file:
            file.write(b"".join(map(json_bytes, records)))

    def repair(self, rank: int) -> None:
        """Truncate this process's parts to whole lines; call it before the first `append`."""
        for path in (self._part(kind, rank) for kind in self.kinds):
            if path.is_file():
                content = path.read_bytes()
                with path.open("r+b") as file:
                    file.truncate(content.rfind(b"\n") + 1)

    def finish(self, count: int) -> None:
        """Join the parts, which must hold `count` examples, and delete them; on one process."""
        records = self.read()
        if len(records) != count or any(map(lacks_scores, records)):
            scored = sum(not lacks_scores(record) for record in records)
            raise RuntimeError(
                f"{self.system}: {len(records)} {self.kinds[0]} of {count}, {scored} scored"
            )
        replace_bytes(self.path, b"".join(map(json_bytes, records)))
        for kind in self.kinds:
            for part in self._parts(kind):
                part.unlink()

    def check_whole(self, count: int) -> None:
        """Raise ValueError unless the joined file holds the examples 0 to `count` - 1."""
        try:
            found = [record["index"] for record in self.read() if not lacks_scores(record)]
        except (ValueError, KeyError, TypeError):
            found = []
        if found != list(range(count)):
            raise ValueError(
                f"{self.path} is damaged: {len(found)} readable {self.kinds[0]}, expected {count}; "
                "delete it and run again"
            )

    def _part(self, kind: str, rank: int) -> Path:
        return self.folder / f"{kind}-{self.system}.part-{rank}.jsonl"

    def _parts(self, kind: str) -> list[Path]:
        return sorted(self.folder.glob(f"{kind}-{self.system}.part-*.jsonl"))


def lacks_scores(record: Record) -> bool:
    """Whether it has references and has not been scored against them yet."""
    return bool(record.get("references")) and "scores" not in record


def _whole_lines(path: Path) -> list[Record]:
    content = path.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
