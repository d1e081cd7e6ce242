"""Work items and entries; an entry is one record of an item, or the reason for its exclusion."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from pipeline.common.command_line import shown
from pipeline.common.stores import Location

BAD_ENCODING = "bad encoding"
RECODE = "texts are read as UTF-8: convert others, e.g. with `iconv -f CP1252 -t UTF-8`"
NOT_JSON = "not JSON"
MALFORMED = "malformed row"
NO_TEXT = "no text"
EMPTY = "empty"
NO_ID = "no id"
NO_SUMMARY = "no summary"
NO_URL = "no URL"
TOO_LONG = "too long"
DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near-duplicate"
BOM = b"\xef\xbb\xbf"  # some editors write it at the start of a file
LONGEST_LINE = 2**28  # bytes or characters; a longer record is counted but never held in memory
LARGE = 2**20  # characters from which a record's lists and objects are counted
MOST_BRACKETS = 2**20  # of lists and objects, at up to 250 bytes each, in a record

Record = dict[str, Any]


class InputError(ValueError):
    """An input that cannot be read; the message names the file and, where known, the record."""


@dataclass(frozen=True)
class Item:
    """An input file, or the block of it whose lines begin at a byte in [start, end)."""

    path: Location
    start: int = 0
    end: int | None = None

    def __str__(self) -> str:
        name = shown(self.path)
        return name if self.end is None else f"{name} from byte {self.start}"

    @property
    def size(self) -> int:
        """In bytes."""
        return self.path.stat().st_size if self.end is None else self.end - self.start

    def open(self) -> IO[bytes]:
        """The bytes among which a block lies."""
        return self.path.open("rb")


@dataclass(frozen=True)
class Folder(Item):
    """A folder of input files as one item: GovReport has 19,466 files of one report each."""

    path: Path

    @property
    def size(self) -> int:
        """Bytes of all files in it."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())


class Entry(NamedTuple):
    """One record of an input, or the reason for its exclusion.

    `number` counts from 1 in the item; `position` is the bytes of the item read so far.
    """

    number: int
    record: Record | str
    position: int = 0


Reader = Callable[[Item], Iterator[Entry]]


def escaped(text: object) -> str:
    """A text that UTF-8 can hold, with escapes for lone surrogates, which JSON's escapes allow.

    Escapes keep texts distinct that differ only there.
    """
    return str(text).encode("utf-8", "backslashreplace").decode()


def text_fault(text: Any) -> str | None:
    """The reason why a field is not a usable text, or None."""
    if not isinstance(text, str):
        return NO_TEXT
    if not text.strip():
        return EMPTY
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON escapes allow
        return BAD_ENCODING
    return None


def parse_object(line: bytes) -> Record | str:
    """The JSON object of a line, or the reason why there is none."""
    if len(line) > LONGEST_LINE or has_many_brackets(line, b"[", b"{"):
        return TOO_LONG
    try:
        record = json.loads(line.removeprefix(BOM).decode())
    except UnicodeDecodeError:
        return BAD_ENCODING
    except (ValueError, RecursionError):
        return NOT_JSON
    return record if isinstance(record, dict) else NOT_JSON


def has_many_brackets(content: Any, *brackets: Any) -> bool:
    """Whether a record (bytes or text) may take far more memory as an object than as text."""
    return len(content) > LARGE and sum(map(content.count, brackets)) > MOST_BRACKETS
