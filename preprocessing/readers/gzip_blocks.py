"""Blocks of large .gz files as items, by an index of points where decompression can begin.

gzip has no such points of its own: without an index each block would decompress all before it,
which from about 60 blocks on takes longer than all else, and several processes could not share a
file. rapidgzip keeps the decompressor's window at every CHUNK of the file.
"""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from pipeline.common.command_line import shown
from pipeline.common.files import temporary_name
from pipeline.common.progress import Progress
from pipeline.common.stores import Location
from preprocessing.readers.entries import InputError, Item
from preprocessing.readers.inputs import begins_json_lines, describe_input
from preprocessing.readers.streams import GZIP, open_source

CHUNK = 2**22
"""Bytes of a .gz between two points."""
READ_BYTES = 2**20


@dataclass(frozen=True)
class GzipBlock(Item):
    """The block of a .gz file whose lines begin at a byte of its text in [start, end)."""

    index: Path = field(kw_only=True)

    def open(self) -> IO[bytes]:
        """The text of the whole file, which can be read from any byte."""
        file = _open(self.path)
        file.import_index(str(self.index))
        return cast(IO[bytes], io.BufferedReader(file, READ_BYTES))


def split_gzip(
    items: Iterable[Item], block_size: int, folder: Path, may_write: bool = True
) -> list[Item]:
    """The items, with blocks of `block_size` bytes of text in place of .gz files of JSON lines that
    are larger than that.

    The index of each, which takes one pass over the file, is kept in `folder`; without
    `may_write`, files that have none stay whole. Raises InputError on a corrupt file, and where
    rapidgzip is not installed.
    """
    split: list[Item] = []
    for item in items:
        if item.end is not None or item.size <= block_size or not _is_gzip_of_lines(item.path):
            split.append(item)
            continue
        digest = hashlib.sha256(describe_input(item.path).encode()).hexdigest()
        index = folder / f"{digest[:16]}.gzidx"
        if not index.exists():
            if not may_write:
                split.append(item)
                continue
            _make_index(item.path, item.size, index)
        with GzipBlock(item.path, index=index).open() as file:
            size = file.seek(0, io.SEEK_END)
        split += [
            GzipBlock(item.path, start, min(start + block_size, size), index=index)
            for start in range(0, size, block_size)
        ]
    return split


def _is_gzip_of_lines(path: Location) -> bool:
    with path.open("rb", 0) as raw:
        if raw.read(len(GZIP)) != GZIP:
            return False
        raw.seek(0)
        return begins_json_lines(path, open_source(raw).head)


def _make_index(path: Location, size: int, index: Path) -> None:
    """Read a file once, which checks it, and write the index."""
    index.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(index)
    bar = Progress(f"points in {shown(path.name)}", size, "B")
    try:
        with _open(path) as file:
            while file.read(READ_BYTES):
                bar.update(file.tell_compressed() // 8 - bar.done)
            if file.tell_compressed() < 8 * size:
                raise RuntimeError("it ends too early")
            file.export_index(str(temporary))
        temporary.replace(index)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"{shown(path)} is corrupt or truncated ({error}); download it again"
        ) from None
    finally:
        bar.close()
        temporary.unlink(missing_ok=True)


def _open(path: Location) -> Any:
    try:
        from rapidgzip import RapidgzipFile  # an extra
    except ImportError:
        raise InputError("--split_gzip needs a package: `pip install rapidgzip`") from None
    return RapidgzipFile(path.open("rb"), parallelization=1, chunk_size=CHUNK)
