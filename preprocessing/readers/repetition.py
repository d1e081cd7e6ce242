"""Gopher's rules for repetition inside a page (Rae et al. 2021, appendix A.1.1, table A1).

Of what repeats, the second and later occurrences count as duplicates; each character counts once
for each rule. Shares of characters are of the text without white space.
"""

import re
from collections.abc import Sequence

import numpy as np

from preprocessing.readers.ngrams import longer_ngrams, word_hashes

DUPLICATE_LINES, DUPLICATE_PARAGRAPHS = 0.30, 0.30
DUPLICATE_LINE_CHARACTERS, DUPLICATE_PARAGRAPH_CHARACTERS = 0.20, 0.20
TOP_NGRAM = {2: 0.20, 3: 0.18, 4: 0.16}
DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
PARAGRAPH = re.compile(r"\n{2,}")


def gopher_repetition_rules(text: str) -> tuple[str, str | None]:
    """The text as it is, and the first rule that it breaks."""
    return text, _fault(text)


def _fault(text: str) -> str | None:
    words = text.split()
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    total = int(lengths.sum())
    if not total:
        return None
    for name, pieces, most, most_characters in (
        ("lines", text.split("\n"), DUPLICATE_LINES, DUPLICATE_LINE_CHARACTERS),
        (
            "paragraphs",
            PARAGRAPH.split(text),
            DUPLICATE_PARAGRAPHS,
            DUPLICATE_PARAGRAPH_CHARACTERS,
        ),
    ):
        share, characters = _duplicates(pieces)
        if share > most:
            return f"Gopher: duplicate {name}"
        if characters / total > most_characters:
            return f"Gopher: characters of duplicate {name}"
    hashes = word_hashes(words)
    ngrams = longer_ngrams(hashes, hashes, 2)
    for n in range(2, max(DUPLICATE_NGRAMS) + 1):
        ordered = np.sort(ngrams)
        if not np.any(ordered[1:] == ordered[:-1]):  # then no longer n-gram repeats
            return None
        if n in TOP_NGRAM and _top_characters(ngrams, lengths, n) / total > TOP_NGRAM[n]:
            return f"Gopher: top {n}-gram"
        if n in DUPLICATE_NGRAMS:
            share = _duplicate_characters(ngrams, lengths, n) / total
            if share > DUPLICATE_NGRAMS[n]:
                return f"Gopher: duplicate {n}-grams"
        ngrams = longer_ngrams(ngrams, hashes, n + 1)
    return None


def _duplicates(pieces: Sequence[str]) -> tuple[float, int]:
    """The share of pieces that repeat an earlier one, and their characters, blank ones aside."""
    pieces = ["".join(piece.split()) for piece in pieces]
    pieces = [piece for piece in pieces if piece]
    distinct = set(pieces)
    characters = sum(map(len, pieces)) - sum(map(len, distinct))
    return 1 - len(distinct) / len(pieces), characters


def _top_characters(ngrams: np.ndarray, lengths: np.ndarray, n: int) -> int:
    """Characters of all occurrences of the most frequent n-gram, of which some repeat."""
    _, firsts, counts = np.unique(ngrams, return_index=True, return_counts=True)
    starts = firsts[counts == counts.max()]
    before = np.concatenate([[0], lengths.cumsum()])
    return int(counts.max() * (before[starts + n] - before[starts]).max())


def _duplicate_characters(ngrams: np.ndarray, lengths: np.ndarray, n: int) -> int:
    """Characters in n-grams that occur before, each counted once."""
    again = np.ones(len(ngrams), bool)
    again[np.unique(ngrams, return_index=True)[1]] = False
    starts = np.flatnonzero(again)
    edges = np.zeros(len(lengths) + 1, np.int64)
    edges[starts] = 1
    np.subtract.at(edges, starts + n, 1)
    return int(lengths[edges.cumsum()[:-1] > 0].sum())
