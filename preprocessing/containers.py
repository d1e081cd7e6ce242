"""Records out of the containers that summarisation sets come in.

JSON lines, JSON documents (one object or an array), CSV, each of them gzipped or in a .zip;
Parquet; folders of these. Members of archives are read where they lie, nothing is extracted.
"""

import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path, PurePath
from typing import IO, Any, NamedTuple

from preprocessing.corpora import (
    BAD_ENCODING,
    LONGEST_LINE,
    NOT_JSON,
    TOO_LONG,
    Entry,
    Item,
    find_inputs,
    numbered_lines,
    parse_line,
    read_json_lines,
    split_items,
)

SPLITS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test"},
}
LINES = (".jsonl", ".txt")  # always JSON lines; a .json file may be that or one document
CORRUPT = (EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile)
PARQUET_ROWS = 64  # read at once: a row may hold a whole book


@dataclass(frozen=True)
class Folder(Item):
    """A folder of input files as one item: GovReport comes as 19,466 files of one report each."""

    @property
    def size(self) -> int:
        """Bytes of all files in it."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())


class Member(NamedTuple):
    """One file, possibly inside an archive, and its entries."""

    name: str
    entries: Iterable[Entry]


def find_items(patterns: Sequence[str], block_size: int) -> list[Item]:
    """The work items of file names, glob patterns and folders, sorted by path.

    A folder is one item; large files of JSON lines are cut into blocks. Raises ValueError for a
    pattern that matches nothing.
    """
    folders = {Path(p) for p in patterns if not has_magic(p) and Path(p).is_dir()}
    files = [pattern for pattern in patterns if Path(pattern) not in folders]
    items: list[Item] = [Folder(folder) for folder in folders]
    for path in find_inputs(files) if files else []:
        items += split_items([path], block_size) if path.suffix in LINES else [Item(path)]
    return sorted(items, key=lambda item: (item.path, item.start))


def split_name(split: str) -> str:
    """`train`, `validation` or `test` for their usual other names; anything else as it is."""
    words = {word: name for name, group in SPLITS.items() for word in group}
    return words.get(split, split)


def read_records(item: Item, split: str) -> Iterator[tuple[str, Entry]]:
    """(file, entry) of all JSON objects of an item; records are as stored, numbered through.

    Of a folder or an archive whose files are named by split, only those of `split` are read.
    Raises ValueError where a file is corrupt or no file belongs to the split.
    """
    number = 0
    try:
        for name, entries in _members(item, split):
            before = number
            for entry in entries:
                number = before + entry.number
                yield name, entry._replace(number=number)
    except CORRUPT as error:
        raise ValueError(
            f"{item} is corrupt or cut short after record {number} ({error}); fetch it again"
        ) from None


def _members(item: Item, split: str) -> Iterator[Member]:
    if isinstance(item, Folder):
        read = 0
        for path in _folder_files(item.path, split):
            yield Member(str(path), _shifted(_file_entries(Item(path)), read))
            read += path.stat().st_size
    elif item.path.suffix == ".zip":
        with zipfile.ZipFile(item.path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            read = 0
            for name in _of_split(names, split, item.path):
                with archive.open(name) as file:
                    yield Member(
                        f"{item.path}: {name}", _shifted(_stream_entries(file, name), read)
                    )
                read += archive.getinfo(name).compress_size
    else:
        yield Member(str(item), _file_entries(item))


def _folder_files(folder: Path, split: str) -> list[Path]:
    """The folder's files of a split: listed in split_ids/*_<split>.ids (GovReport), or by name."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    lists = sorted((folder / "split_ids").glob("*.ids"))
    if not lists:
        return [paths[name] for name in _of_split(paths, split, folder)]
    ids: set[str] = set()
    for path in lists:
        if _split_of(path.name) == split_name(split):
            ids.update(path.read_text(encoding="utf-8").split())
    chosen = [path for _, path in sorted(paths.items()) if path.stem in ids]
    if not chosen:
        raise ValueError(f"{folder}: split_ids lists no file for --split {split}")
    return chosen


def _of_split(names: Iterable[str], split: str, container: Path) -> list[str]:
    """Sorted names of data files: those of the split where their names tell splits, else all."""
    splits = {name: _split_of(name) for name in sorted(names) if _is_data(name)}
    if not splits:
        raise ValueError(f"{container} holds no .json, .jsonl, .txt, .csv or .parquet file")
    found = {name for name in splits.values() if name}
    chosen = [name for name in splits if not found or splits[name] == split_name(split)]
    if not chosen:
        raise ValueError(
            f"{container} holds {', '.join(sorted(found))}, nothing for --split {split}"
        )
    return chosen


def _split_of(name: str) -> str | None:
    """The split that a file's name, or else its folder's, speaks of."""
    for part in reversed(PurePath(name).parts):
        for word in re.split("[^a-z]+", part.lower()):
            if split_name(word) in SPLITS:
                return split_name(word)
    return None


def _is_data(name: str) -> bool:
    """Whether this is a data file and not what a Mac or an editor left."""
    path = PurePath(name)
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return not hidden and _plain(path).suffix in (".json", ".csv", *LINES, ".parquet")


def _plain(path: PurePath) -> PurePath:
    return path.with_suffix("") if path.suffix == ".gz" else path


def _shifted(entries: Iterable[Entry], start: int) -> Iterator[Entry]:
    for entry in entries:
        yield entry._replace(position=start + entry.position)


def _file_entries(item: Item) -> Iterator[Entry]:
    if item.path.suffix == ".parquet":
        return _parquet(item.path)
    if _plain(item.path).suffix == ".csv":
        return _csv_file(item.path)
    with gzip.open(item.path) if item.path.suffix == ".gz" else item.path.open("rb") as file:
        if _plain(item.path).suffix == ".json" and not _begins_with_object_line(file):
            return _document(file.read(), item.size)
    return read_json_lines(item)


def _stream_entries(file: IO[bytes], name: str) -> Iterator[Entry]:
    """Entries of an archive's member, a stream that can only be read forwards."""
    path = PurePath(name)
    if path.suffix == ".parquet":
        raise ValueError(f"{name} is Parquet inside an archive; unpack it")
    if path.suffix == ".gz":
        file = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
    if _plain(path).suffix == ".csv":
        yield from _csv(file, file.tell, name)
        return
    if _plain(path).suffix == ".json" and not _begins_with_object_line(file):
        yield from _document(file.read(), 0)
        return
    for number, line in numbered_lines(file):
        if len(line) > LONGEST_LINE:
            yield Entry(number, TOO_LONG)
        elif line.strip():
            yield Entry(number, parse_line(line))


def _begins_with_object_line(file: IO[bytes] | gzip.GzipFile) -> bool:
    """Whether the first line is an object of its own, so that this is JSON lines; rewinds."""
    line = file.readline(LONGEST_LINE).strip()
    file.seek(0)
    return line.startswith(b"{") and line.endswith(b"}")


def _document(content: bytes, position: int) -> Iterator[Entry]:
    """The object, or the array's objects, of one JSON document."""
    try:
        value: Any = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        value = [BAD_ENCODING]
    except (ValueError, RecursionError):
        value = [NOT_JSON]
    for number, record in enumerate(value if isinstance(value, list) else [value], start=1):
        usable = isinstance(record, dict) or record is BAD_ENCODING
        yield Entry(number, record if usable else NOT_JSON, position)


def _csv_file(path: Path) -> Iterator[Entry]:
    with path.open("rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        yield from _csv(file, raw.tell, str(path))


def _csv(file: Any, tell: Callable[[], int], name: str) -> Iterator[Entry]:
    """The rows of a CSV file by its header; bytes that are not UTF-8 become lone surrogates."""
    csv.field_size_limit(LONGEST_LINE)  # a field may hold a whole book
    text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        for number, row in enumerate(csv.DictReader(text), start=1):
            row.pop(None, None)  # fields beyond the header
            yield Entry(number, row, tell())
    except csv.Error as error:
        raise ValueError(f"{name} is no CSV file: {error}") from None
    finally:
        text.detach()


def _parquet(path: Path) -> Iterator[Entry]:
    try:
        import pyarrow  # an extra
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{path} is a Parquet file; `pip install pyarrow` to read it") from None
    try:
        with parquet.ParquetFile(path) as file:
            rows, size, number = file.metadata.num_rows, path.stat().st_size, 0
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in range(batch.num_rows):
                    number += 1
                    try:
                        record = batch.slice(row, 1).to_pylist()[0]
                    except UnicodeDecodeError:
                        record = BAD_ENCODING
                    yield Entry(number, record, size * number // rows)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path} is corrupt or no Parquet file ({error}); fetch it again"
        ) from None
