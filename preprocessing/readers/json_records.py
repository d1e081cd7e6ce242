"""Records of JSON lines, and of JSON documents: one object or more, or an array of objects."""

import io
import json
from collections.abc import Callable, Iterator
from typing import IO, Any

from preprocessing.readers import entries
from preprocessing.readers.entries import (
    BOM,
    NOT_JSON,
    TOO_LONG,
    Entry,
    InputError,
    Item,
    has_many_brackets,
    parse_object,
)

CHUNK = 2**18  # characters of a document that are read at once
SPACE = " \t\n\r\ufeff"


def is_document(head: bytes) -> bool:
    """Whether a file that begins so is a JSON document and not JSON lines.

    An array is, and an object that begins on the first line that is not blank and goes on in the
    next one: that does not begin another object, or the first line ends as only an inner line can.
    """
    lines = head.removeprefix(BOM).lstrip().split(b"\n")
    if lines[0].startswith(b"["):
        return True
    if not lines[0].startswith(b"{") or len(lines) == 1 or lines[0].rstrip().endswith(b"}"):
        return False
    if lines[0].rstrip().endswith((b"{", b"[", b",", b":")):
        return True
    following = next((line.strip() for line in lines[1:] if line.strip()), b"")
    return not following.startswith(b"{")


def json_lines(file: IO[bytes], position: Callable[[], int]) -> Iterator[Entry]:
    """The objects of JSON lines, one a line; blank lines count in the numbers only."""
    for number, line in numbered_lines(file):
        if not _is_blank(line):
            yield Entry(number, parse_object(line), position())


def block_lines(file: IO[bytes], item: Item) -> Iterator[Entry]:
    """The objects of the lines that begin in the item's block of a seekable file."""
    if item.start:
        file.seek(item.start - 1)
        while (rest := file.readline(entries.LONGEST_LINE)) and not rest.endswith(b"\n"):
            pass  # the rest of a line that begins before the block
    begin = file.tell()
    for number, line in numbered_lines(file):
        if item.end is not None and begin >= item.end:
            return
        begin = file.tell()
        if not _is_blank(line):
            yield Entry(number, parse_object(line), begin - item.start)


def _is_blank(line: bytes) -> bool:
    return not line.strip() or line.strip() == BOM


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of a file; a line of over LONGEST_LINE bytes keeps one byte more."""
    number, limit = 0, entries.LONGEST_LINE
    while line := file.readline(limit + 1):
        number += 1
        rest = line
        while len(rest) > limit and not rest.endswith(b"\n"):
            rest = file.readline(limit + 1)
        yield number, line


def json_document(file: IO[bytes], position: Callable[[], int]) -> Iterator[Entry]:
    """The objects of a JSON document, arrays opened, one in memory at a time.

    Bytes that are not UTF-8 become lone surrogates. Raises InputError with the line where the
    document is not JSON, and on a value of over LONGEST_LINE characters.
    """
    text = _JsonText(io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline=""))
    number, in_array = 0, False
    while char := text.next_character():
        if char == "[" and not in_array:
            in_array = True
            text.skip()
        elif in_array and char in ",]":
            in_array = char == ","
            text.skip()
        else:
            value, number = text.value(), number + 1
            yield Entry(number, value if isinstance(value, dict) else NOT_JSON, position())
    if in_array:
        raise InputError(
            f"is not valid JSON: the array does not end, after line {text.line}{CUT_SHORT}"
        )


CUT_SHORT = "; is it cut short? Then download it again"


class _JsonText:
    """A JSON text that is read in pieces, as far as the next value needs."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file, self._decode = file, json.JSONDecoder().raw_decode
        self._buffer, self._at, self._ended = "", 0, False
        self.line = 1

    def next_character(self) -> str:
        """The first character of what follows, after white space; empty at the end."""
        while True:
            while self._at < len(self._buffer):
                if self._buffer[self._at] not in SPACE:
                    return self._buffer[self._at]
                self.skip()
            if self._ended:
                return ""
            self._read(CHUNK)

    def skip(self) -> None:
        """Move past one character."""
        self.line += self._buffer[self._at] == "\n"
        self._at += 1

    def value(self) -> Any:
        """The next value."""
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                if self._ended or isinstance(error, RecursionError):
                    where = self.line + self._buffer.count("\n", self._at, getattr(error, "pos", 0))
                    message = str(getattr(error, "msg", error)).removesuffix(" starting at")
                    ends = getattr(error, "pos", 0) >= len(self._buffer)
                    cut = ends or message.startswith("Unterminated")
                    hint = CUT_SHORT if cut else ""
                    raise InputError(
                        f"is not valid JSON at line {where} ({message}){hint}"
                    ) from None
            else:
                if end < len(self._buffer) or self._ended:  # else a number may go on
                    self.line += self._buffer.count("\n", self._at, end)
                    self._at = end
                    return value
            waiting = len(self._buffer) - self._at
            self._read(max(CHUNK, waiting))  # doubled, so that time is linear
            waiting = len(self._buffer) - self._at
            if waiting > entries.LONGEST_LINE or has_many_brackets(self._buffer, "[", "{"):
                raise InputError(
                    f"has a value that is {TOO_LONG} or not JSON at line {self.line}; write one "
                    "object per line"
                )

    def _read(self, count: int) -> None:
        more = self._file.read(count)
        self._buffer, self._at = self._buffer[self._at :] + more, 0
        self._ended = not more
