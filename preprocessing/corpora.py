"""Readers: files as users have them, as records, each line either usable or a reason why not."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

BAD_ENCODING = "bad encoding"
NOT_JSON = "not JSON"
NO_TEXT = "no text"
EMPTY = "empty"
NO_ID = "no id"
NO_SUMMARY = "no summary"

Record = dict[str, Any]
Reader = Callable[[Path], Iterator[tuple[int, Record | str]]]


def find_inputs(patterns: Sequence[str]) -> list[Path]:
    """The files of file names and glob patterns, each once, sorted.

    Raises ValueError for a pattern that matches no file.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = map(Path, glob(pattern, recursive=True))  # noqa: PTH207 (patterns may be absolute)
        files = {match for match in matches if match.is_file()}
        if Path(pattern).is_file():  # a name may hold glob characters itself
            files.add(Path(pattern))
        if not files:
            raise ValueError(f"no file matches --input {pattern}")
        found |= files
    return sorted(found)


def read_json_lines(path: Path) -> Iterator[tuple[int, Record | str]]:
    """(line number from 1, object or reason) of JSON lines, gzipped if the name ends in .gz.

    Blank lines are passed over. Raises ValueError where a .gz is corrupt or cut short.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parse(line)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is corrupt or cut short after line {number} ({error}); fetch it again"
        ) from None


def read_c4(path: Path) -> Iterator[tuple[int, Record | str]]:
    """(line number, {text, url} or reason) of a file in C4's format."""
    for number, record in read_json_lines(path):
        if isinstance(record, str):
            yield number, record
            continue
        reason = _text_fault(record.get("text"))
        yield number, reason or {"text": record["text"], "url": str(record.get("url", ""))}


def read_pairs(path: Path) -> Iterator[tuple[int, Record | str]]:
    """(line number, {id, document, summaries: list[str]} or reason) of a summarisation set.

    Each line is {id, document, summary}; `summary` is a text or a list of alternative texts, of
    which the empty ones are left out.
    """
    for number, record in read_json_lines(path):
        if isinstance(record, str):
            yield number, record
            continue
        summary = record.get("summary")
        summaries = [text for text in (summary if isinstance(summary, list) else [summary]) if text]
        faults = [_text_fault(text) for text in summaries]
        if BAD_ENCODING in faults:
            yield number, BAD_ENCODING
        elif reason := _text_fault(record.get("document")):
            yield number, reason
        elif record.get("id") is None:
            yield number, NO_ID
        elif not (
            kept := [text for text, fault in zip(summaries, faults, strict=True) if not fault]
        ):
            yield number, NO_SUMMARY
        else:
            yield (
                number,
                {"id": str(record["id"]), "document": record["document"], "summaries": kept},
            )


def _parse(line: bytes) -> Record | str:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        return BAD_ENCODING
    except (ValueError, RecursionError):
        return NOT_JSON
    return record if isinstance(record, dict) else NOT_JSON


def _text_fault(text: Any) -> str | None:
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
