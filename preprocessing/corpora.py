"""Readers: files as users have them, as entries, each a usable record or a reason why not."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import IO, Any, NamedTuple

BAD_ENCODING = "bad encoding"
NOT_JSON = "not JSON"
NO_TEXT = "no text"
EMPTY = "empty"
NO_ID = "no id"
NO_SUMMARY = "no summary"
TOO_LONG = "too long"
DUPLICATE = "duplicate"
LONGEST_LINE = 2**28  # bytes; a longer line is counted without ever being held in memory
BOM = b"\xef\xbb\xbf"  # what some editors begin a file with
EDGE = 2**16  # bytes of an input's beginning and end that its description covers
COMPRESSED = (".gz", ".zip", ".parquet")

Record = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """An input file, or the block of it whose lines begin at a byte in [start, end)."""

    path: Path
    start: int = 0
    end: int | None = None

    def __str__(self) -> str:
        return str(self.path) if self.end is None else f"{self.path} from byte {self.start}"

    @property
    def size(self) -> int:
        """Bytes to read."""
        return self.path.stat().st_size if self.end is None else self.end - self.start


class Entry(NamedTuple):
    """One record of an input, or the reason why it cannot be used.

    `number` counts from 1 in the item; `position` is how many bytes of the item were read.
    """

    number: int
    record: Record | str
    position: int = 0


Reader = Callable[[Item], Iterator[Entry]]


def find_inputs(patterns: Sequence[str]) -> list[Path]:
    """The files of file names and glob patterns, each once, sorted.

    Raises ValueError for a pattern that matches no file.
    """
    found: set[Path] = set()
    for pattern in patterns:
        if Path(pattern).is_dir():
            raise ValueError(f"--input {pattern} is a folder; name its files, as '{pattern}/*.gz'")
        matches = map(Path, glob(pattern, recursive=True))  # noqa: PTH207 (patterns may be absolute)
        files = {match for match in matches if match.is_file()}
        if Path(pattern).is_file():  # a name may hold glob characters itself
            files.add(Path(pattern))
        if not files:
            raise ValueError(f"no file matches --input {pattern}")
        found |= files
    return sorted(found)


def split_items(paths: Sequence[Path], block_size: int) -> list[Item]:
    """The work items of input files: one each, or one for every `block_size` bytes of plain text.

    Compressed files can only be read from their beginning, so they stay whole.
    """
    items = []
    for path in paths:
        size = path.stat().st_size
        if path.suffix in COMPRESSED or size <= block_size:
            items.append(Item(path))
        else:
            starts = range(0, size, block_size)
            items += [Item(path, start, min(start + block_size, size)) for start in starts]
    return items


def describe_input(path: Path) -> str:
    """What tells an input from another: name, size, and a digest of its first and last 64 KiB.

    A .gz ends in the CRC of its text, so it cannot change unnoticed; of a large plain file a change
    in the middle that keeps the size goes unseen. A folder is only named.
    """
    if path.is_dir():
        return path.name
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(EDGE))
        file.seek(max(0, size - EDGE))
        digest.update(file.read(EDGE))
    return f"{path.name}, {size} bytes, {digest.hexdigest()[:16]}"


def read_json_lines(item: Item) -> Iterator[Entry]:
    """The JSON objects of an item, one a line, gzipped if the name ends in .gz.

    Blank lines are passed over. Raises ValueError where a .gz is corrupt or cut short.
    """
    number = 0
    try:
        with item.path.open("rb") as raw:
            for number, line, position in _gunzipped(raw) if _is_gzip(item) else _lines(raw, item):
                if len(line) > LONGEST_LINE:
                    yield Entry(number, TOO_LONG, position)
                elif line.strip():
                    yield Entry(number, parse_line(line), position)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{item} is corrupt or cut short after line {number} ({error}); fetch it again"
        ) from None


def read_c4(item: Item) -> Iterator[Entry]:
    """Entries of a file in C4's format; a record is {text, url}."""
    for number, record, position in read_json_lines(item):
        if not isinstance(record, str):
            reason = text_fault(record.get("text"))
            record = reason or {"text": record["text"], "url": str(record.get("url", ""))}
        yield Entry(number, record, position)


def text_fault(text: Any) -> str | None:
    """Why a field is not a usable text, or None."""
    if not isinstance(text, str):
        return NO_TEXT
    if not text.strip():
        return EMPTY
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON escapes allow
        return BAD_ENCODING
    return None


def _is_gzip(item: Item) -> bool:
    return item.path.suffix == ".gz"


def _gunzipped(raw: IO[bytes]) -> Iterator[tuple[int, bytes, int]]:
    """(number, line, compressed bytes read) of a gzipped file."""
    with gzip.GzipFile(fileobj=raw) as file:
        for number, line in numbered_lines(file):
            yield number, line, raw.tell()


def _lines(raw: IO[bytes], item: Item) -> Iterator[tuple[int, bytes, int]]:
    """(number, line, bytes read) of the lines that begin in the item's block."""
    if item.start:
        raw.seek(item.start - 1)
        while (rest := raw.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
            pass  # the end of a line that begins before the block
    begin = raw.tell()
    for number, line in numbered_lines(raw):
        if item.end is not None and begin >= item.end:
            return
        begin = raw.tell()
        yield number, line, begin - item.start


def numbered_lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from 1; of a line over LONGEST_LINE bytes only that much and one more."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        rest = line
        while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE + 1)
        yield number, line


def parse_line(line: bytes) -> Record | str:
    """The JSON object of a line, or why there is none."""
    try:
        record = json.loads(line.removeprefix(BOM).decode())
    except UnicodeDecodeError:
        return BAD_ENCODING
    except (ValueError, RecursionError):
        return NOT_JSON
    return record if isinstance(record, dict) else NOT_JSON
