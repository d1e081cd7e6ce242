"""Gap-sentence generation: selects the sentences of a document that become its pseudo-summary.

PEGASUS (Zhang et al. 2020, section 3.1.1) scores sentences by ROUGE-1 against the rest of the
document. LOCOST (section 4.1) pre-trains on this selection without a mask token. It does not state
the variant: scoring each sentence independently, counting repeated words and F1 are our reading;
the other variants are available as options.
"""

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Any

import numpy as np

from pipeline.common.words import STOPWORDS, Words, rouge_words
from preprocessing.word_overlaps import word_overlaps

STRATEGIES = ("ind-orig", "ind-uniq", "seq-orig", "seq-uniq", "lead", "random")
METRICS = ("f1", "precision", "recall")
RATIO = 0.2


@dataclass(frozen=True)
class GapSentences:
    """Options of the selection. Raises ValueError on values out of range or without effect."""

    strategy: str = "ind-orig"
    """Ind: the sentences with the best scores, each against all others; Seq: greedily, the sentence
    with which all selected ones together score best against the rest; Orig counts repeated words,
    Uniq does not; lead: the first sentences; random: any."""

    metric: str = "f1"
    """ROUGE-1 F1, precision (shared words per selected word) or recall (per word of the rest)."""

    ratio: float = RATIO
    """Share of the sentences to select, rounded down."""

    ratio_range: tuple[float, float] | None = None
    """Minimum and maximum share: each document's ratio is drawn between them, instead of `ratio`.
    PEGASUS (mixed & stochastic): 0.15 to 0.45."""

    stemming: bool = False
    """Compare Porter stems, as rouge-score does with use_stemmer."""

    stopwords: bool = False
    """Ignore STOPWORDS in all counts."""

    noise: float = 0.0
    """Each score is multiplied by a number drawn between 1 - noise and 1 + noise (Ind only).
    PEGASUS (mixed & stochastic): 0.2."""

    minimum_sentences: int = 0
    """1: select at least one of two or more sentences, as PEGASUS's code does."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"--strategy is {self.strategy!r}, expected one of {', '.join(STRATEGIES)}"
            )
        if self.metric not in METRICS:
            raise ValueError(f"--metric is {self.metric!r}, expected one of {', '.join(METRICS)}")
        if not 0 < self.ratio < 1:
            raise ValueError(
                f"--ratio is {self.ratio}, expected a share of the sentences between 0 and 1"
            )
        if self.ratio_range is not None:
            if len(self.ratio_range) != 2 or not 0 < self.ratio_range[0] < self.ratio_range[1] < 1:
                raise ValueError(
                    f"--ratio_range is {' '.join(map(str, self.ratio_range))}, expected a minimum "
                    "and a maximum share between 0 and 1, such as 0.15 0.45"
                )
            if self.ratio != RATIO:
                raise ValueError(
                    f"--ratio {self.ratio} and --ratio_range exclude each other; give only one"
                )
        if not 0 <= self.noise <= 1:
            raise ValueError(f"--noise is {self.noise}, expected a share of the score, 0 to 1")
        if self.minimum_sentences not in (0, 1):
            raise ValueError(f"--minimum_sentences is {self.minimum_sentences}, expected 0 or 1")
        self._refuse_what_has_no_effect()

    def _refuse_what_has_no_effect(self) -> None:
        idle = []
        if not self.strategy.startswith("ind"):
            idle += ["noise"] if self.noise else []
        if self.strategy in ("lead", "random"):
            idle += ["metric"] if self.metric != "f1" else []
            idle += [name for name in ("stemming", "stopwords") if getattr(self, name)]
        if idle:
            raise ValueError(
                f"--{idle[0]} has no effect with --strategy {self.strategy}; omit it or use "
                "--strategy ind-orig"
            )

    @property
    def is_random(self) -> bool:
        """Whether `select` needs random numbers."""
        return self.strategy == "random" or self.noise > 0 or self.ratio_range is not None

    def select(self, sentences: list[str], draw: random.Random | None = None) -> list[int]:
        """Indices, ascending, of a document's gap sentences; of equal scores, the earlier one.

        At least one sentence always remains. Raises ValueError if the selection is random and
        `draw` is missing (see `document_draw`).
        """
        return self.select_all([sentences], [draw])[0]

    def select_all(
        self, documents: Sequence[list[str]], draws: Sequence[random.Random | None] | None = None
    ) -> list[list[int]]:
        """`select` of each document, all scored at once, which takes less time."""
        draws = draws or [None] * len(documents)
        if self.is_random and None in draws:
            raise ValueError("these options select at random; pass `draw`")
        sizes = [len(sentences) for sentences in documents]
        counts = [self._count(size, draw) for size, draw in zip(sizes, draws, strict=True)]
        if self.strategy == "lead":
            return [list(range(count)) for count in counts]
        if self.strategy.startswith("seq"):
            words = map(self._words, documents)
            return [sorted(self._greedy(*one)) for one in zip(words, counts, strict=True)]
        drawn = (  # a number for each sentence, if the options ask for it
            draw.random()
            for draw, size in zip(draws, sizes, strict=True)
            if draw is not None
            for _ in range(size)
        )
        if self.strategy == "random":
            return _best(np.fromiter(drawn, float), sizes, counts)
        scores = self._scores(documents)
        if self.noise:
            scores = scores * (1 + self.noise * (2 * np.fromiter(drawn, float) - 1))
        return _best(scores, sizes, counts)

    def scores(self, sentences: list[str]) -> list[float]:
        """Each sentence's ROUGE-1 `metric` against all the others together, without noise.

        Precision and recall equal rouge-score's floats. F1 is 2 overlap / (|s| + |rest|) in one
        division; rouge-score's, from two rounded numbers, may differ in the last digit.
        """
        return self._scores([sentences]).tolist()

    def _scores(self, documents: Sequence[list[str]]) -> np.ndarray:
        """The scores (S,) of all S sentences of some documents."""
        found = word_overlaps(documents, self._counted, self._uniq)
        above, below = self._fraction(found.overlap, found.length, found.total)
        return np.divide(above, below, out=np.zeros(len(above)), where=below > 0)

    def _fraction(self, overlap: Any, length: Any, total: Any) -> tuple[Any, Any]:
        """ROUGE-1 `metric` as numerator and denominator, integers or arrays of them.

        From the candidate's overlap with the rest, its length, and the document's words. Orig: the
        lengths of candidate and rest add up to `total`. Uniq: a word on both sides counts on both,
        so they add up to the distinct words plus the overlap.

        Each metric is one correctly rounded division of integers: equal scores are equal floats,
        and different scores, at least 1 / n^2 apart, are different floats below n = 2^26 words.
        """
        both = total + int(self._uniq) * overlap
        return {
            "f1": (2 * overlap, both),
            "precision": (overlap, length),
            "recall": (overlap, both - length),
        }[self.metric]

    @property
    def _uniq(self) -> bool:
        return self.strategy.endswith("uniq")

    def _count(self, sentences: int, draw: random.Random | None) -> int:
        ratio = self.ratio
        if draw is not None and self.ratio_range is not None:
            lowest, highest = self.ratio_range
            ratio = lowest + (highest - lowest) * draw.random()
        # The small term undoes rounding: 0.29 * 100 is 28.999999999999996.
        count = int(ratio * sentences + 1e-9)
        return max(0, min(max(count, self.minimum_sentences), sentences - 1))

    def _counted(self, words: Words) -> Words:
        """The words that count, stemmed where asked for."""
        if self.stopwords:
            words = [word for word in words if word not in STOPWORDS]
        return list(map(_stem, words)) if self.stemming else words

    def _words(self, sentences: list[str]) -> list[Words]:
        """Each sentence's words as they are counted; for Uniq, each word once."""
        words = [self._counted(rouge_words(sentence)) for sentence in sentences]
        return [list(dict.fromkeys(sentence)) for sentence in words] if self._uniq else words

    def _greedy(self, words: list[Words], count: int) -> list[int]:
        """The sentences that Seq selects, in order of selection: lazy greedy (Minoux 1978).

        A sentence's gain, its addition to the overlap of selected and rest, never grows as others
        are selected: each word's share is concave in its selected occurrences, min(k, n - k), for
        Uniq min(k, n - k, 1). With Uniq its addition to the selected length shrinks too, and each
        word lost there is lost to the gain as well. As scores are at most 1, neither can raise
        one. So an earlier gain is an upper bound, and the best bound that is still exact is the
        best sentence. Sentences with equal bounds share a heap, by index. A bound that is not
        exact falls by at least one, so a sentence of n words is reconsidered at most 2 n times.
        """
        totals = Counter(chain.from_iterable(words))
        total = len(totals) if self._uniq else totals.total()
        sized = self.metric != "f1"  # F1 does not depend on the selected length
        chosen: dict[bytes, int] = dict.fromkeys(totals, 0)

        def gain(i: int) -> tuple[int, int]:
            """A sentence's current additions to the overlap and to the selected length."""
            overlap = length = 0
            for word, n in Counter(words[i]).items():
                before = chosen[word]
                rest = totals[word] - before
                if self._uniq:
                    overlap += (rest > 1) - (before > 0)
                    length += before == 0
                else:
                    overlap += min(before + n, rest - n) - min(before, rest)
                    length += n
            return overlap, length * sized

        def score(overlap: int, length: int) -> float:
            above, below = self._fraction(overlap, length, total)
            return above / below if below else 0.0

        waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for i in range(len(words)):
            waiting[gain(i)].append(i)  # ascending, so already a heap
        picks: list[int] = []
        overlap = length = 0
        while len(picks) < count:
            bounds = [
                (-score(overlap + more, length + longer), heap[0], (more, longer))
                for (more, longer), heap in waiting.items()
            ]
            heapify(bounds)
            while True:
                key, i, bound = bounds[0]
                now = gain(i)
                heap = waiting[bound]
                heappop(heap)
                if not heap:
                    del waiting[bound]
                if now == bound:
                    break
                heappop(bounds)
                if heap:
                    heappush(bounds, (key, heap[0], bound))
                heappush(waiting[now], i)
                if waiting[now][0] == i:
                    heappush(bounds, (-score(overlap + now[0], length + now[1]), i, now))
            picks.append(i)
            overlap, length = overlap + now[0], length + now[1]
            for word in words[i]:
                chosen[word] += 1
        return picks


def select_gap_sentences(
    sentences: list[str], ratio: float = RATIO, strategy: str = "ind-orig"
) -> list[int]:
    """Indices, ascending, of the floor(ratio * M) of M sentences that `strategy` selects.

    None are selected of fewer than 1 / ratio sentences. Raises ValueError as GapSentences does.
    """
    return GapSentences(strategy=strategy, ratio=ratio).select(sentences)


def mask_gap_sentences(
    ids: Sequence[list[int]],
    gaps: Sequence[int],
    mask_id: int | None = None,
    share: float = 1.0,
    draw: random.Random | None = None,
) -> list[list[int]]:
    """The source: a document's sentences (lists of ids) without its gap sentences.

    With a `mask_id`, that id replaces a gap sentence with probability `share`, else the sentence
    stays: PEGASUS's and LongT5's code mask 0.9 and leave 0.1. Without one, as in LOCOST, it is
    removed. Raises ValueError on a share outside (0, 1], and on one below 1 without `mask_id` or
    `draw`.
    """
    if not 0 < share <= 1:
        raise ValueError(f"--mask_share is {share}, expected above 0 and at most 1")
    if share < 1 and (mask_id is None or draw is None):
        raise ValueError(f"--mask_share {share} needs a mask token and a draw; pass both")
    chosen = set(gaps)
    if mask_id is None:
        return [sentence for i, sentence in enumerate(ids) if i not in chosen]
    return [
        [mask_id] if i in chosen and (draw is None or draw.random() < share) else sentence
        for i, sentence in enumerate(ids)
    ]


def document_draw(text: str, seed: int) -> random.Random:
    """Random numbers that depend only on a document's text and the seed.

    Only `random()` is used, whose values are the same in all versions of Python.
    """
    digest = hashlib.blake2b(f"{seed} {text}".encode("utf-8", "surrogatepass"), digest_size=16)
    return random.Random(int.from_bytes(digest.digest(), "big"))


@lru_cache(2**18)
def _stem(word: bytes) -> bytes:
    """rouge-score with use_stemmer: Porter's stem of words longer than three letters."""
    return _porter()(word.decode()).encode() if len(word) > 3 else word


@lru_cache(1)
def _porter() -> Callable[[str], str]:
    from nltk.stem.porter import PorterStemmer  # as in rouge-score; slow to import

    return PorterStemmer().stem


def _best(scores: np.ndarray, sizes: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """Indices, ascending, of each document's `counts` highest scores; of equal scores, the first.

    `scores` (S,) are those of all documents, `sizes` the numbers of their sentences.
    """
    document = np.repeat(np.arange(len(sizes)), np.array(sizes, int))  # (S,)
    start = np.cumsum([0, *sizes])[document]  # (S,) the first sentence of the same document
    order = np.lexsort((-scores, document))  # stable, so ties keep their order
    rank = np.arange(len(scores)) - start
    chosen = np.sort(order[rank < np.array(counts, int)[document]])
    indices = iter((chosen - start[chosen]).tolist())
    return [list(islice(indices, count)) for count in counts]
