"""From file names and patterns to work items."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from pipeline.common.command_line import shown
from pipeline.common.stores import Location, StorePath, find, is_url
from preprocessing.readers.entries import Folder, Item
from preprocessing.readers.json_records import is_document
from preprocessing.readers.splits import COMPRESSED, plain_name
from preprocessing.readers.streams import HEAD, is_compressed, is_parquet, is_tar, is_zip

EDGE = 2**16  # bytes at an input's beginning and end that its description covers
REQUESTS = 16  # descriptions of files on stores that are made at once


def find_inputs(patterns: Sequence[str]) -> list[Location]:
    """The files that match file names, URLs and glob patterns, each once, sorted, local ones first.

    Raises ValueError for a folder, a link to nothing, a pattern that matches no file and a URL that
    cannot be used, OSError for a store that cannot be reached.
    """
    found: set[Location] = set()
    for pattern in patterns:
        if is_url(pattern):
            if not (stored := find(pattern)):
                raise ValueError(f"no file matches --input {pattern}")
            found.update(stored)
            continue
        if not pattern:
            raise ValueError("--input is empty; give files or a pattern, as 'c4/*.json.gz'")
        if Path(pattern).is_dir():
            example = f"{pattern.rstrip('/')}/*.gz"
            raise ValueError(f"--input {pattern} is a folder; give its files, as '{example}'")
        matches = [*map(Path, glob(pattern, recursive=True))]  # noqa: PTH207 (may be absolute)
        files = {match for match in matches if match.is_file()}
        _check_others(pattern, (match for match in matches if match not in files))
        if Path(pattern).is_file():  # a name may itself contain glob characters
            files.add(Path(pattern))
        if not files:
            raise ValueError(f"no file matches --input {pattern}")
        found |= files
    return sorted(found, key=_place)


def _check_others(pattern: str, matches: Iterable[Path]) -> None:
    """Raise ValueError for what would be left out in silence: links to nothing, and folders, which
    only ** passes through."""
    for match in matches:
        if not match.exists():
            raise ValueError(
                f"--input {pattern}: {match} is a link to {match.readlink()}, which is not there; "
                "download that file, or remove the link"
            )
        if match.is_dir() and "**" not in pattern:
            raise ValueError(
                f"--input {pattern}: {match} is a folder; give its files too, as '{match}/*.gz', "
                "or a pattern that does not match it"
            )


def find_items(patterns: Sequence[str], block_size: int) -> list[Item]:
    """The work items of file names, glob patterns and folders, sorted by path.

    A folder is one item; large files of JSON lines are split into blocks. Raises ValueError for a
    pattern that matches nothing.
    """
    local = [pattern for pattern in patterns if not is_url(pattern)]
    folders = {Path(p) for p in local if not has_magic(p) and Path(p).is_dir()}
    files = [p for p in patterns if is_url(p) or Path(p) not in folders]
    items: list[Item] = [Folder(folder) for folder in folders]
    items += split_items(find_inputs(files) if files else [], block_size)
    return sorted(items, key=lambda item: (_place(item.path), item.start))


def _place(path: Location) -> tuple[bool, tuple[str, ...]]:
    return isinstance(path, StorePath), path.parts


def split_items(paths: Sequence[Location], block_size: int) -> list[Item]:
    """The work items of input files: one per file, or one per `block_size` bytes of JSON lines.

    Other formats, and all that is compressed, can only be read from their beginning.
    """
    items = []
    for path in paths:
        size = path.stat().st_size
        if size <= block_size or not _is_json_lines(path):
            items.append(Item(path))
        else:
            starts = range(0, size, block_size)
            items += [Item(path, start, min(start + block_size, size)) for start in starts]
    return items


def _is_json_lines(path: Location) -> bool:
    with path.open("rb") as file:
        return begins_json_lines(path, file.read(HEAD))


def begins_json_lines(path: Location, head: bytes) -> bool:
    """Whether a file of that name whose content begins so is one of JSON lines."""
    if plain_name(str(path)).suffix in (".csv", ".tsv"):
        return False
    return not any(test(head) for test in (is_compressed, is_zip, is_tar, is_parquet, is_document))


@dataclass(frozen=True)
class Listing:
    """The work items of a job, made by one process for all, and what identifies their inputs."""

    items: tuple[Item, ...]
    inputs: dict[Location, str]
    """Each input file's description, which changes with its content, in the order of the items."""
    versions: tuple[int, ...] = ()
    """Where files were added to a finished dataset: the number of inputs of each version of it."""

    @classmethod
    def of(cls, items: Iterable[Item]) -> "Listing":
        """The listing of some items. Raises OSError where an input cannot be read."""
        items = tuple(items)
        return cls(items, _describe_inputs(dict.fromkeys(item.path for item in items)))

    def after(self, earlier: Sequence[str], versions: Sequence[int] = ()) -> "Listing":
        """The same with the inputs of these descriptions first, in their order.

        Those are the first versions of the dataset, by default one. Unchanged where they are not
        all here.
        """
        paths: dict[str, list[Location]] = {}
        for path, description in reversed(self.inputs.items()):
            paths.setdefault(description, []).append(path)
        missing = any(count > len(paths.get(one, ())) for one, count in Counter(earlier).items())
        if missing or not earlier:
            return self
        first = [paths[description].pop() for description in earlier]
        order = {path: place for place, path in enumerate(dict.fromkeys([*first, *self.inputs]))}
        versions = [*(versions or [len(earlier)])]
        if len(order) > versions[-1]:
            versions.append(len(order))
        return Listing(
            tuple(sorted(self.items, key=lambda item: order[item.path])),
            {path: self.inputs[path] for path in order},
            tuple(versions) if len(versions) > 1 else (),
        )


def _describe_inputs(paths: Iterable[Location]) -> dict[Location, str]:
    """The description of each path; of those on stores, several are made at once."""
    paths = [*paths]
    if not any(isinstance(path, StorePath) for path in paths):
        return {path: describe_input(path) for path in paths}
    with ThreadPoolExecutor(REQUESTS) as pool:
        return dict(zip(paths, pool.map(describe_input, paths), strict=True))


def describe_input(path: Location) -> str:
    """An input's identity: name, size, and a digest of its first and last 64 KiB.

    A .gz ends in the CRC of its text, so every change shows; in a large plain file, a change in the
    middle that keeps the size does not. A folder is identified by its name alone.
    Raises ValueError for a compressed file without content, which a failed download leaves.
    """
    name = shown(path.name)
    if path.is_dir():
        return name
    size = path.stat().st_size
    if not size and path.name.endswith(COMPRESSED):
        raise ValueError(f"{shown(path)} has no bytes, so it is not compressed; download it again")
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(EDGE))
        file.seek(max(0, size - EDGE))
        digest.update(file.read(EDGE))
    return f"{name}, {size} bytes, {digest.hexdigest()[:16]}"
