"""Rows of tables with a header: CSV and TSV files, Parquet files."""

import csv
import io
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO

from pipeline.common.stores import Location, StorePath
from preprocessing.readers import entries
from preprocessing.readers.entries import BAD_ENCODING, MALFORMED, TOO_LONG, Entry, InputError

PARQUET_ROWS = 64  # per read: a row may hold a whole book
DELIMITERS = ",;\t"
BACKSLASHED = re.compile(r'\\(["\\])')


def delimited_rows(file: IO[bytes], position: Callable[[], int], tabs: bool) -> Iterator[Entry]:
    """The rows of a CSV or TSV file with a header, which also tells the delimiter (, ; or tab).

    Quotes inside a field are doubled (RFC 4180) or follow a backslash (Spark, MySQL); a TSV file
    may use none. A row with another number of fields than the header is malformed, as is one with
    an unclosed quote; reading continues on the next line. Bytes that are not UTF-8 become lone
    surrogates. Raises InputError on a header that names a column twice.
    """
    csv.field_size_limit(entries.LONGEST_LINE)  # a field may hold a whole book
    text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    rows = _Rows(text, _first_line(text), tabs)
    for number, row in enumerate(rows, start=1):
        record = row if isinstance(row, str) else dict(zip(rows.header, row, strict=True))
        yield Entry(number, record, position())


def _first_line(text: io.TextIOWrapper) -> str:
    while line := text.readline(entries.LONGEST_LINE):
        if line.strip():
            return line
    return ""


class _Rows:
    """Iterates over the rows after the header: lists of fields, or reasons for exclusion."""

    def __init__(self, text: io.TextIOWrapper, first: str, tabs: bool) -> None:
        self._text, self._waiting, self._taken = text, deque([first]), list[str]()
        self._tabs = tabs
        counts = {char: len(_fields([first], char) or ()) for char in DELIMITERS}
        self._delimiter = max(counts, key=lambda char: (counts[char], char == "\t" and tabs))
        self.header = self._standard() or []
        if repeated := {name for name in self.header if self.header.count(name) > 1}:
            raise InputError(f"has several columns {', '.join(sorted(repeated))}; rename them")

    def __iter__(self) -> Iterator[list[str] | str]:
        while self._has_more():
            row = self._standard()
            if row is not None and not any(map(str.strip, row)) and len(row) < 2:  # a blank line
                continue
            if row is not None and self._fits(row):
                yield row
                continue
            yield self._repaired(row) or MALFORMED

    def _fits(self, row: list[str]) -> bool:
        return len(row) == len(self.header)

    def _has_more(self) -> bool:
        if not self._waiting and (line := self._text.readline(entries.LONGEST_LINE + 1)):
            self._waiting.append(line)
        return bool(self._waiting)

    def _lines(self) -> Iterator[str]:
        """The lines that a row needs, as they are taken."""
        size = 0
        while self._has_more() and size <= entries.LONGEST_LINE:
            self._taken.append(self._waiting.popleft())
            size += len(self._taken[-1])
            yield self._taken[-1]

    def _standard(self) -> list[str] | None:
        """The next row by RFC 4180, None where it breaks its rules."""
        self._taken = []
        return _fields(self._lines(), self._delimiter)

    def _repaired(self, row: list[str] | None) -> list[str] | str | None:
        """The row that the taken lines hold by another rule, None if there is none."""
        lines = self._taken
        if len(lines[0]) > entries.LONGEST_LINE:
            self._skip_line(lines[0])
            return TOO_LONG
        self._waiting.extendleft(reversed(lines))
        self._taken = []
        escaped = _fields(map(_unescaped, self._lines()), self._delimiter)
        if escaped is not None and self._fits(escaped):
            return escaped
        self._waiting.extendleft(reversed(self._taken))
        plain = lines[0].rstrip("\r\n").split("\t") if self._tabs else []
        # Only a row that ends as it should is left out as a whole; an open quote may have
        # swallowed good rows.
        for _ in lines[:1] if row is None or self._fits(plain) else lines:
            self._waiting.popleft()
        return plain if self._fits(plain) else None

    def _skip_line(self, line: str) -> None:
        while line and not line.endswith("\n"):
            line = self._text.readline(entries.LONGEST_LINE)


def _fields(lines: Iterator[str] | list[str], delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader(lines, delimiter=delimiter, strict=True), [])
    except csv.Error:
        return None


def _unescaped(line: str) -> str:
    return BACKSLASHED.sub(lambda found: '""' if found[1] == '"' else "\\", line)


def parquet_rows(path: Location) -> Iterator[Entry]:
    """The rows of a Parquet file."""
    try:
        import pyarrow  # an extra
        from pyarrow import parquet
    except ImportError:
        raise InputError("is a Parquet file; `pip install pyarrow` to read it") from None
    try:
        source = path.open("rb") if isinstance(path, StorePath) else path
        with parquet.ParquetFile(source) as file:
            rows, size, number = file.metadata.num_rows, path.stat().st_size, 0
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in range(batch.num_rows):
                    number += 1
                    try:
                        record = batch.slice(row, 1).to_pylist()[0]
                    except UnicodeDecodeError:
                        record = BAD_ENCODING
                    yield Entry(number, record, size * number // rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"is corrupt or not a Parquet file ({error}); download it again") from None
