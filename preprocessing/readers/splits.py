"""Which files of a folder or an archive belong to a split, by their names or lists of ids."""

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from pipeline.common.command_line import shown
from preprocessing.readers.entries import BOM, InputError
from preprocessing.readers.streams import open_source

SPLITS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test"},
}
DATA = (".json", ".jsonl", ".ndjson", ".txt", ".csv", ".tsv", ".parquet")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
SHOWN = 5  # names in a message


class Choice(NamedTuple):
    """The names of the files to read, sorted, and of those left out (without hidden files)."""

    chosen: tuple[str, ...]
    left_out: tuple[str, ...]


def split_name(split: str) -> str:
    """`train`, `validation` or `test` for their common synonyms; any other name unchanged."""
    words = {word: name for name, group in SPLITS.items() for word in group}
    return words.get(split, split)


def plain_name(name: str) -> PurePath:
    """A file's name without the suffix of its compression."""
    path = PurePath(name)
    return path.with_suffix("") if path.suffix in COMPRESSED else path


def listed(names: Iterable[str]) -> str:
    """The first names, and how many there are beside them."""
    names = list(names)
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(shown, names[:SHOWN])) + more


def choose(names: Iterable[str], split: str, contents: Mapping[str, bytes]) -> Choice:
    """The data files of a split, listed in split_ids/*_<split>.ids (GovReport) or by their names.

    All are chosen where no name contains a split. `contents` has the lists of ids, and the
    beginnings of .txt files, which may be JSON lines or notes. Raises InputError where only some
    names contain a split, where no file belongs to `split`, and without data files.
    """
    visible = [name for name in sorted(names) if not _is_hidden(name)]
    data = [name for name in visible if plain_name(name).suffix in DATA]
    lists = [name for name in visible if is_list(name)]
    if lists:
        words = {name: contents[name].decode("utf-8", "replace").split() for name in lists}
        ids = {id for name in lists if _split_of(name) == split_name(split) for id in words[name]}
        chosen = [name for name in data if plain_name(name).stem in ids]
        if not chosen:
            raise InputError(f"split_ids lists no file for --split {split}; choose another")
    else:
        chosen = _by_name(
            [name for name in data if name not in contents or begins_with_record(contents[name])],
            split,
        )
    kept = {*chosen, *lists}
    return Choice(tuple(chosen), tuple(name for name in visible if name not in kept))


def begins_with_record(content: bytes) -> bool:
    """Whether a text, of which this is the beginning, may be JSON lines."""
    try:
        content = open_source(io.BytesIO(content)).head
    except EOFError:  # the beginning of a compressed file
        return True
    return content.removeprefix(BOM).lstrip().startswith((b"{", b"["))


def _by_name(names: list[str], split: str) -> list[str]:
    if not names:
        raise InputError(f"has no {', '.join(DATA[:-1])} or {DATA[-1]} file with records")
    splits = {name: _split_of(name) for name in names}
    found = {part for part in splits.values() if part}
    unnamed = [name for name, part in splits.items() if part is None]
    if found and unnamed:
        named = [name for name, part in splits.items() if part]
        raise InputError(
            f"has files that name a split ({listed(named)}) and files that name none "
            f"({listed(unnamed)}); give the files to read (unpack an archive first)"
        )
    chosen = [name for name, part in splits.items() if part in (None, split_name(split))]
    if not chosen:
        raise InputError(f"has files for {', '.join(sorted(found))}, none for --split {split}")
    return chosen


def _split_of(name: str) -> str | None:
    """The split in a file's name, or else in the names of its folders."""
    for part in reversed(PurePath(name).parts):
        for word in re.split("[^a-z]+", part.lower()):
            if split_name(word) in SPLITS:
                return split_name(word)
    return None


def is_list(name: str) -> bool:
    """Whether a file lists the ids of a split."""
    path = PurePath(name)
    return path.suffix == ".ids" and path.parent.name == "split_ids"


def _is_hidden(name: str) -> bool:
    """Whether macOS or an editor left this file behind."""
    return any(part.startswith((".", "__MACOSX")) for part in PurePath(name).parts)
