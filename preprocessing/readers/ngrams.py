"""Words and word n-grams of a text as 64-bit hashes: the same on every machine, in every version.

No library's hash function decides which documents are kept.
"""

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np

_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: 2**64 divided by the golden ratio
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # SplitMix64's


def normalised_words(text: str) -> list[str]:
    """The runs of letters, digits and underscores, in lower case; all else separates words."""
    return _WORD.findall(text.lower())


def word_hashes(words: Sequence[str]) -> np.ndarray:
    """(words,) uint64. No word may contain white space."""
    encoded = " ".join(words).encode("utf-8", "surrogatepass").split(b" ") if words else []
    return mixed(np.fromiter(map(crc32, encoded), np.uint64, len(words)))


def ngram_hashes(words: np.ndarray, n: int) -> np.ndarray:
    """(..., words - n + 1) uint64: hashes of all runs of `n` of the (..., words) hashes.

    There are none in fewer words.
    """
    total = np.zeros((*words.shape[:-1], words.shape[-1] + 1), np.uint64)
    for length in range(1, n + 1):
        total = longer_ngrams(total, words, length)
    return mixed(total)


def longer_ngrams(ngrams: np.ndarray, words: np.ndarray, n: int) -> np.ndarray:
    """Numbers for all runs of `n` words, equal for equal runs, from those of `n` - 1 words."""
    return ngrams[..., :-1] * _FACTOR + words[..., n - 1 :]


def mixed(values: np.ndarray) -> np.ndarray:
    """uint64 values, each bit of which then depends on every bit before (SplitMix64)."""
    for shift, factor in _MIX:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values, sorted; the hash table of `numpy.unique` is slow for documents."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
