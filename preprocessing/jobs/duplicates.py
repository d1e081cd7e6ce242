"""Exact duplicates across all inputs: of equal texts, the one with the lowest (item, number) stays.

A first pass stores a hash of every text that passes the filters, a second sorts all hashes, so the
result does not depend on the order in which items are read. Texts are equal if they have the same
lines, spaces at their ends and blank lines aside: these give the same sentences. Two different
texts share a 64-bit hash with probability 2^-64: among C4's 365 million documents, 0.004 texts are
expected to be lost to collisions.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from pipeline.common.files import flush_to_disk, temporary_name
from preprocessing.readers.entries import Entry

PARTS = 16  # hashes are sorted in 16 parts, one in memory at a time
HASHES = np.dtype([("hash", "<u8"), ("number", "<u8")])


def hashes(entries: Iterable[Entry]) -> np.ndarray:
    """HASHES rows (hash of the text, number of the entry) of the entries that have a text."""
    rows = [
        (_hash(record["text"]), number)
        for number, record, _ in entries
        if not isinstance(record, str)
    ]
    return np.array(rows, HASHES)


def _hash(text: str) -> int:
    lines = "\n".join(stripped for line in text.split("\n") if (stripped := line.strip()))
    return int.from_bytes(hashlib.blake2b(lines.encode(), digest_size=8).digest(), "little")


def find_duplicates(count: int, load: Callable[[int], np.ndarray]) -> list[np.ndarray]:
    """Per item, the sorted numbers of its entries that repeat an earlier one.

    `load(item)` gives the HASHES rows of one of `count` items; it is called PARTS times for each,
    and its rows are dropped before the next call, so only one file is open. Takes about 24 bytes of
    memory for each row of one part.
    """
    repeated: list[list[np.ndarray]] = [[] for _ in range(count)]
    for part in range(PARTS):
        chosen = [_part(load(item), part) for item in range(count)]
        everything = np.concatenate([rows["hash"] for rows in chosen])
        order = np.argsort(everything, kind="stable")  # equal hashes stay in the items' order
        again = np.zeros(len(everything), bool)
        again[order[1:]] = everything[order[1:]] == everything[order[:-1]]
        ends = np.cumsum([len(rows) for rows in chosen])[:-1]
        for numbers, rows, repeats in zip(repeated, chosen, np.split(again, ends), strict=True):
            numbers.append(rows["number"][repeats])
    return [np.sort(np.concatenate(numbers)) for numbers in repeated]


def _part(rows: np.ndarray, part: int) -> np.ndarray:
    return np.array(rows[rows["hash"] >> np.uint64(60) == part])  # a copy, so a file is closed


def save(path: Path, array: np.ndarray) -> None:
    """Write an array under a temporary name, then rename."""
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            np.save(file, array)
            flush_to_disk(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
