"""MinHash: texts that share most of their 5-word shingles share a key with high probability.

A text's signature is, for each of HASHES hash functions, the smallest hash of its shingles; two
texts agree in one with probability J, the Jaccard similarity of their sets of shingles. A band of
rows of the signature is a key, so they share one with probability 1 - (1 - J^rows)^bands.

Written here, not by a library: which documents stay must not change with a library's version.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np

from preprocessing.readers.ngrams import mixed, ngram_hashes, normalised_words, word_hashes

# FineWeb's (Penedo et al. 2024, section 3.4); 0.8, the option's example, gives its 14 bands of 8.
SHINGLE, HASHES = 5, 112
FOUND = 0.9
"""Of the pairs whose similarity is the threshold, at least this share is found."""
CHUNK = 2**12  # shingles whose hashes are in memory at once
_FACTORS, _TERMS = (
    (mixed(np.arange(2 * HASHES, dtype=np.uint64)) >> np.uint64(32))
    .astype(np.uint32)
    .reshape(2, HASHES, 1)
)
_FACTORS |= np.uint32(1)


@dataclass(frozen=True)
class MinHash:
    """Keys for a similarity: `bands` of `rows` hashes each, of shingles of `shingle` words."""

    threshold: float
    bands: int
    rows: int
    shingle: int = SHINGLE

    @classmethod
    def at(cls, threshold: float) -> "MinHash":
        """The longest bands that find FOUND of the pairs at a similarity: for 0.8, 14 of 8 rows.

        Raises ValueError outside (0, 1), and where no bands find so many.
        """
        if not 0 < threshold < 1:
            raise ValueError(
                f"--near_duplicates is {threshold}, expected a similarity between 0 and 1, as 0.8"
            )
        for rows in range(HASHES, 0, -1):
            found = cls(threshold, HASHES // rows, rows)
            if found.share_found(threshold) >= FOUND:
                return found
        least = math.ceil(1000 * (1 - (1 - FOUND) ** (1 / HASHES))) / 1000
        raise ValueError(
            f"--near_duplicates is {threshold}: {HASHES} hashes find {FOUND:.0%} of the pairs from "
            f"a similarity of {least} on; give that or a larger one"
        )

    def share_found(self, similarity: float) -> float:
        """The probability that two texts of that Jaccard similarity share a key."""
        return 1 - (1 - similarity**self.rows) ** self.bands

    def keys(self, text: str) -> np.ndarray:
        """(bands,) uint64. Of fewer words than a shingle has, all are one shingle."""
        words = word_hashes(normalised_words(text))
        shingles = ngram_hashes(words, min(self.shingle, len(words)))
        rows = smallest_hashes(shingles)[: self.bands * self.rows].reshape(self.bands, self.rows)
        places = np.arange(self.bands, dtype=np.uint64)  # equal rows in two bands are no match
        return mixed(ngram_hashes(rows, self.rows)[:, 0] + places)

    def describe(self) -> dict[str, float]:
        """For the manifest."""
        return asdict(self)


def smallest_hashes(shingles: np.ndarray) -> np.ndarray:
    """(HASHES,) uint64: by each function, the smallest hash of (shingles,) uint64, at least one."""
    short = (shingles >> np.uint64(32)).astype(np.uint32)
    smallest = np.full(HASHES, 2**32 - 1, np.uint32)
    for start in range(0, len(short), CHUNK):
        hashes = _FACTORS * short[start : start + CHUNK] + _TERMS
        np.minimum(smallest, hashes.min(axis=1), out=smallest)
    return smallest.astype(np.uint64)
