"""How many words each sentence shares with the rest of its document, for many documents at once.

Numpy over a block of documents takes less time than one document after another
(`benchmark.py preprocessing`: score and select).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np

from pipeline.common.words import SEPARATED, Words

END = b"|"  # after each sentence's words; no word is one
_SEPARATED_OR_END = SEPARATED[:10] + END + SEPARATED[11:]  # a newline becomes END


@dataclass(frozen=True)
class WordOverlaps:
    """Of the S sentences of all documents, in order; each array is (S,)."""

    overlap: np.ndarray
    """Clipped unigram overlap with the rest: the sum over words of min(c, total - c)."""
    length: np.ndarray
    """Words of the sentence."""
    total: np.ndarray
    """Words of its document."""


def word_overlaps(
    documents: Sequence[Sequence[str]], counted: Callable[[Words], Words], distinct: bool = False
) -> WordOverlaps:
    """The overlaps of all sentences of some documents.

    Of a document's words, with END after each sentence, those count that `counted` leaves or puts
    in their place. `distinct` counts each word once a sentence, and once a document in `total`.

    The overlap is the sentence's length, minus 2 c - total for every word with more than half of
    its occurrences in the sentence: only words that occur once, or are repeated in the sentence.
    """
    sentences = np.array([len(document) for document in documents], np.int64)
    document = np.repeat(np.arange(len(sentences)), sentences)  # (S,)
    size = len(document)
    ids = np.fromiter(_ids(documents, counted), np.int64)
    ends = ids == 0
    sentence = np.cumsum(ends)[~ends]  # (W,) of each word
    ids = ids[~ends]  # (W,)
    if distinct:
        ids, sentence = np.divmod(np.unique(ids * size + sentence), max(size, 1))
    occurrences = np.bincount(ids, minlength=1)
    length = np.bincount(sentence, minlength=size)
    repeated = occurrences[ids] > 1
    lost = np.bincount(sentence[~repeated], minlength=size)
    keys, here = np.unique(ids[repeated] * size + sentence[repeated], return_counts=True)
    word, place = np.divmod(keys, max(size, 1))
    more = np.maximum(2 * here - occurrences[word], 0)
    lost += np.bincount(place, more, minlength=size).astype(np.int64)
    if distinct:
        owner = np.zeros(len(occurrences), np.int64)
        owner[ids] = document[sentence]
        total = np.bincount(owner[1:], minlength=len(sentences))
    else:
        total = np.bincount(document, length, minlength=len(sentences)).astype(np.int64)
    return WordOverlaps(length - lost, length, total[document])


def _ids(documents: Sequence[Sequence[str]], counted: Callable[[Words], Words]) -> Iterator[int]:
    """The words of all documents as numbers from 1, each document with its own; 0 for END."""
    fresh = count(1).__next__
    return chain.from_iterable(
        map(defaultdict(fresh, {END: 0}).__getitem__, counted(_words_and_ends(document)))
        for document in documents
    )


def _words_and_ends(sentences: Sequence[str]) -> Words:
    """The `rouge_words` of all sentences, END after each."""
    text = "\n".join([*sentences, ""])
    if text.count("\n") > len(sentences):  # a newline inside a sentence separates words only
        text = "".join(sentence.replace("\n", " ") + "\n" for sentence in sentences)
    marked = text.lower().encode("ascii", "replace").translate(_SEPARATED_OR_END)
    return marked.replace(END, b" | ").split()
