"""The files inside folders, zip and tar archives, read in place, without extraction."""

import tarfile
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from pipeline.common.command_line import shown
from pipeline.common.stores import Location
from preprocessing.readers.entries import Folder, InputError, Item
from preprocessing.readers.splits import Choice, choose, is_list, listed, plain_name
from preprocessing.readers.streams import HEAD, is_tar, is_zip, open_source

LONGEST_LIST = 2**24  # bytes of a split's list of ids
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
PACK_AGAIN = "unpack it and give the files, or pack them again with Deflate"


class Member(NamedTuple):
    """A file to read: its name, its bytes as stored, and its path unless it is in an archive.

    `before` are the bytes of its folder or archive that precede it; None outside of one.
    """

    name: str
    file: IO[bytes]
    path: Location | None
    before: int | None = None


class Container(Protocol):
    """A folder or an archive."""

    def names(self) -> list[str]:
        """The names of its files."""
        ...

    def open_files(self, names: Collection[str]) -> Iterator[tuple[str, IO[bytes], int]]:
        """(name, content, bytes of the container before it) of the files of these names.

        Each is read before the next one is asked for.
        """
        ...


class FolderFiles:
    """A folder's files, however deep."""

    def __init__(self, folder: Path) -> None:
        self._paths = {
            str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()
        }

    def names(self) -> list[str]:
        """As in Container."""
        return list(self._paths)

    def open_files(self, names: Collection[str]) -> Iterator[tuple[str, IO[bytes], int]]:
        """As in Container; sorted."""
        before = 0
        for name in sorted(names):
            with self._paths[name].open("rb", 0) as file:
                yield name, file, before
            before += self._paths[name].stat().st_size


class ZipFiles:
    """The members of a zip archive."""

    def __init__(self, path: Location) -> None:
        self._path = path

    def names(self) -> list[str]:
        """As in Container."""
        with self._archive() as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()]

    def open_files(self, names: Collection[str]) -> Iterator[tuple[str, IO[bytes], int]]:
        """As in Container; sorted. Raises InputError on what the zipfile module cannot read."""
        before = 0
        with self._archive() as archive:
            for name in sorted(names):
                info = archive.getinfo(name)
                if info.flag_bits & 1:
                    raise InputError(f"holds {shown(name)} encrypted; {PACK_AGAIN}")
                if info.compress_type not in ZIP_METHODS:
                    method = "Deflate64" if info.compress_type == 9 else info.compress_type
                    raise InputError(
                        f"holds {shown(name)} compressed by method {method}, which Python "
                        f"cannot read; {PACK_AGAIN}"
                    )
                with archive.open(info) as file:
                    yield name, file, before
                before += info.compress_size

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with self._path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield archive


class TarFiles:
    """The regular files of a tar archive, which may be compressed, in the archive's order."""

    def __init__(self, path: Location) -> None:
        self._path = path

    def names(self) -> list[str]:
        """As in Container; reads the whole archive."""
        return [name for name, _, _ in self._walk()]

    def open_files(self, names: Collection[str]) -> Iterator[tuple[str, IO[bytes], int]]:
        """As in Container."""
        wanted = set(names)
        return (found for found in self._walk() if found[0] in wanted)

    def _walk(self) -> Iterator[tuple[str, IO[bytes], int]]:
        with (
            self._path.open("rb", 0) as raw,
            tarfile.open(fileobj=open_source(raw).stream, mode="r|") as archive,
        ):
            for info in archive:
                if info.isreg() and (file := archive.extractfile(info)):
                    yield info.name, file, raw.tell()


def members(item: Item, split: str) -> Iterator[Member]:
    """The files of an item that belong to a split: of a folder or archive, or the file itself.

    Each is read before the next one is asked for. Raises InputError as `choose` does.
    """
    container = _container(item)
    if container is None:
        with item.path.open("rb", 0) as raw:
            yield Member(str(item), raw, item.path)
        return
    inside = "/" if isinstance(item, Folder) else ": "
    for name, file, before in container.open_files(_choice(container, split).chosen):
        path = item.path / name if isinstance(item, Folder) else None
        yield Member(f"{item}{inside}{shown(name)}", file, path, before)


def left_out(item: Item, split: str) -> tuple[str, ...]:
    """The names of the files of a folder or an archive that are not read."""
    container = _container(item)
    return _choice(container, split).left_out if container else ()


def _container(item: Item) -> Container | None:
    """The folder or archive that an item is, by its first bytes; None for a file of records."""
    if isinstance(item, Folder):
        return FolderFiles(item.path)
    with item.path.open("rb", 0) as raw:
        head = open_source(raw).head
    if is_zip(head):
        return ZipFiles(item.path)
    return TarFiles(item.path) if is_tar(head) else None


def _choice(container: Container, split: str) -> Choice:
    names = container.names()
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"holds several files named {listed(repeated)}; {PACK_AGAIN}")
    looked_at = [name for name in names if is_list(name) or plain_name(name).suffix == ".txt"]
    contents = {
        name: file.read(LONGEST_LIST if is_list(name) else HEAD)
        for name, file, _ in container.open_files(looked_at)
    }
    return choose(names, split, contents)
