"""Records of any input: JSON lines, JSON documents, CSV, TSV, Parquet, also packed."""

import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from lzma import LZMAError

from preprocessing.readers.archives import Member, members
from preprocessing.readers.entries import (
    BAD_ENCODING,
    MALFORMED,
    NOT_JSON,
    RECODE,
    Entry,
    InputError,
    Item,
)
from preprocessing.readers.json_records import (
    block_lines,
    is_document,
    json_document,
    json_lines,
)
from preprocessing.readers.splits import plain_name
from preprocessing.readers.streams import is_parquet, is_tar, is_zip, open_source
from preprocessing.readers.tables import delimited_rows, parquet_rows

CORRUPT = (EOFError, zlib.error, LZMAError, zipfile.BadZipFile, tarfile.TarError, struct.error)
UNREADABLE = {BAD_ENCODING, MALFORMED, NOT_JSON}


def read_records(item: Item, split: str) -> Iterator[tuple[str, Entry]]:
    """(file, entry) of all records of an item, as stored, numbered across its files.

    From a folder or an archive whose file names contain a split, only files of `split` are read.
    Raises InputError, which names file and record, where a file is corrupt or has no record that
    can be read, or where no file belongs to the split.
    """
    name, number, before = str(item), 0, 0
    try:
        for name, entries in _files(item, split):
            before, reasons = number, Counter[object]()
            for entry in entries:
                number = before + entry.number
                reasons[entry.record if isinstance(entry.record, str) else None] += 1
                yield name, entry._replace(number=number)
            if item.end is None and reasons and reasons.keys() <= UNREADABLE:
                found = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
                advice = f"; {RECODE}" if BAD_ENCODING in reasons else ""
                raise InputError(
                    f"has no record that can be read ({found}); see docs/data.md{advice}"
                )
    except InputError as error:
        raise InputError(f"{name} {error}") from None
    except (*CORRUPT, OSError, RuntimeError, MemoryError, ValueError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if isinstance(error, OSError) and error.errno is not None:
            what = f"cannot be read after record {number - before} ({error.strerror})"
        elif isinstance(error, MemoryError):
            what = f"needs more memory than there is after record {number - before}"
        else:
            what = f"is corrupt or truncated after record {number - before} ({error})"
            what += "; download it again"
        raise InputError(f"{name} {what}") from None


def _files(item: Item, split: str) -> Iterator[tuple[str, Iterable[Entry]]]:
    if item.end is not None:
        with item.open() as file:
            yield str(item), block_lines(file, item)
        return
    for member in members(item, split):
        yield member.name, _entries(member)


def _entries(member: Member) -> Iterator[Entry]:
    source = open_source(member.file)
    head = source.head
    before = member.before
    position = source.position if before is None else lambda: before
    suffix = plain_name(member.name).suffix
    if is_zip(head) or is_tar(head):
        raise InputError("is an archive inside another file; unpack it")
    if is_parquet(head):
        if member.path is None or source.is_compressed:
            raise InputError("is a Parquet file inside another file; unpack it")
        yield from parquet_rows(member.path)
    elif suffix in (".csv", ".tsv"):
        yield from delimited_rows(source.stream, position, tabs=suffix == ".tsv")
    elif is_document(head):
        yield from json_document(source.stream, position)
    else:
        yield from json_lines(source.stream, position)
