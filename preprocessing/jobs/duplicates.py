"""Duplicates across all inputs: of texts that share a key, the one with the lowest document stays.

A document is `item << 32 | number`, so documents are ordered as their items and lines are. An exact
duplicate has the lines of an earlier text, spaces at their ends and blank lines aside: such texts
have the same sentences. A near-duplicate is connected to an earlier text by a chain of shared
MinHash keys. Keys are sorted in runs of items, then compared in parts of all keys, so memory does
not grow with the inputs, and the result does not depend on the order in which anything is read.

A 63-bit key of two different texts is the same with probability 2^-63: among C4's 365 million
documents, 0.007 texts are expected to be lost to that.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from preprocessing.readers.entries import DUPLICATE, NEAR_DUPLICATE, Entry
from preprocessing.readers.minhash import MinHash
from preprocessing.readers.ngrams import distinct

ROWS = 2**24
"""Keys in memory at a time, about; each takes 70 bytes there and 16 in a file."""


@dataclass(frozen=True)
class DuplicateKeys:
    """Which keys documents get: of their whole text, of their similarity, or both."""

    exact: bool
    near: MinHash | None = None

    def of(self, item: int, entries: Iterable[Entry]) -> np.ndarray:
        """(2, keys) uint64, keys and their documents, of an item's entries that have a text."""
        keys, documents = array("Q"), array("Q")
        for number, record, _ in entries:
            if isinstance(record, str):
                continue
            before = len(keys)
            if self.exact:
                keys.append(_hash(record["text"]) | 1)  # odd keys are exact, even ones near
            if self.near is not None:
                keys.frombytes((self.near.keys(record["text"]) & ~np.uint64(1)).tobytes())
            documents.extend([item << 32 | number] * (len(keys) - before))
        return np.array([keys, documents], np.uint64)


def _hash(text: str) -> int:
    lines = "\n".join(stripped for line in text.split("\n") if (stripped := line.strip()))
    return int.from_bytes(hashlib.blake2b(lines.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class KeyPlan:
    """How all keys are sorted: `runs` of items in their order, then `parts` of the range of keys.

    `rows` are each run's keys.
    """

    runs: Sequence[tuple[int, int]]
    rows: Sequence[int]
    parts: int

    @classmethod
    def of(cls, counts: Sequence[int], rows: int = ROWS) -> "KeyPlan":
        """The plan for items with these counts of keys.

        A run has `rows` keys at most, unless one item alone has more; a part has about as many.
        """
        starts, total = [0], 0
        for item, count in enumerate(counts):
            if total + count > rows and item > starts[-1]:
                starts.append(item)
                total = 0
            total += count
        runs = list(pairwise([*starts, len(counts)]))
        enough = max(1, -(-sum(counts) // rows))
        return cls(runs, [sum(counts[slice(*run)]) for run in runs], 2 ** (enough - 1).bit_length())


def sorted_run(items: Sequence[np.ndarray]) -> np.ndarray:
    """The (2, keys) rows of a run of items, sorted by key, then by document."""
    rows = np.concatenate(items, axis=1)
    return rows[:, np.argsort(rows[0], kind="stable")]  # documents ascend from item to item


def part_of(run: np.ndarray, part: int, parts: int) -> np.ndarray:
    """The rows of a sorted run whose keys are in the part-th of `parts` equal ranges; a copy."""
    width = 2**64 // parts
    bounds = np.array([part * width, (part + 1) * width - 1], np.uint64)
    start = np.searchsorted(run[0], bounds[0], "left")
    end = np.searchsorted(run[0], bounds[1], "right")
    return np.array(run[:, start:end])


def find_pairs(slices: Sequence[np.ndarray]) -> np.ndarray:
    """(3, pairs) uint64 of one part of the keys of all runs: each later document of a key, the
    first of that key, and whether the key is exact."""
    keys, documents = sorted_run(slices)
    again = np.zeros(len(keys), bool)
    again[1:] = keys[1:] == keys[:-1]
    firsts = documents[~again][np.cumsum(~again) - 1]
    return np.array([documents[again], firsts[again], keys[again] & np.uint64(1)])


def find_duplicates(count: int, load: Callable[[int], np.ndarray]) -> np.ndarray:
    """(2, documents) uint64, sorted: the documents that do not stay, and whether they are exact.

    `load(part)` gives the pairs of one of `count` parts, again for each pass; of documents that
    pairs connect, the lowest stays. Takes 70 bytes of memory for each document of a pair, and the
    pairs of one part.
    """
    documents = _union(load(part)[:2].ravel() for part in range(count))
    exact = np.zeros(len(documents), bool)
    first = np.arange(len(documents))
    connected = False
    while not connected:
        connected = True
        for part in range(count):
            pairs = load(part)
            here, there = (_places(documents, side) for side in pairs[:2])
            exact[here[pairs[2] == 1]] = True
            connected &= bool(np.all(first[here] == first[there]))
            lower = np.minimum(first[here], first[there])
            np.minimum.at(first, first[here], lower)
            np.minimum.at(first, first[there], lower)
            while np.any(first != (above := first[first])):
                first = above
    left_out = first != np.arange(len(documents))
    return np.array([documents[left_out], exact[left_out]], np.uint64)


def _places(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where each value is in an array that has it; looked up in order, which memory likes."""
    order = np.argsort(values)
    places = np.empty(len(values), np.intp)
    places[order] = np.searchsorted(ordered, values[order])
    return places


def _union(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """The distinct values of all arrays, sorted; about three times its size in memory."""
    union, waiting, count = np.empty(0, np.uint64), [], 0
    for values in arrays:
        waiting.append(distinct(values))
        count += len(waiting[-1])
        if count > max(len(union), ROWS):
            union, waiting, count = distinct(np.concatenate([union, *waiting])), [], 0
    return distinct(np.concatenate([union, *waiting]))


def reasons(found: np.ndarray, item: int) -> dict[int, str]:
    """{number: reason} of an item's entries that do not stay, from those of all items."""
    bounds = np.array([item << 32, (item + 1) << 32], np.uint64)
    start, end = np.searchsorted(found[0], bounds)
    return {
        document & 2**32 - 1: DUPLICATE if exact else NEAR_DUPLICATE
        for document, exact in found[:, start:end].T.tolist()
    }
