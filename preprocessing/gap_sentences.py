"""Gap-sentence generation: which sentences of a document become its pseudo-summary.

PEGASUS (Zhang et al. 2020, section 3.1.1) scores sentences by ROUGE-1 against the rest of the
document. LOCOST (section 4.1) pre-trains on that choice without a mask token; that it scores each
sentence on its own, counts repeated words and takes F1 is our reading, so the others are here too.
"""

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import chain

STRATEGIES = ("ind-orig", "ind-uniq", "seq-orig", "seq-uniq", "lead", "random")
METRICS = ("f1", "precision", "recall")
RATIO = 0.2

# What is no letter or digit of rouge-score separates words.
SEPARATED = bytes(i if chr(i) in "abcdefghijklmnopqrstuvwxyz0123456789" else 32 for i in range(256))

# NLTK's English list in its form of 127 words (gist.github.com/sebleier/554280), the one that
# LongT5's pre-training code names.
STOPWORDS = frozenset(
    b"""
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she
    her hers herself it its itself they them their theirs themselves what which who whom this that
    these those am is are was were be been being have has had having do does did doing a an the and
    but if or because as until while of at by for with about against between into through during
    before after above below to from up down in out on off over under again further then once here
    there when where why how all any both each few more most other some such no nor not only own
    same so than too very s t can will just don should now
    """.split()
)

Words = list[bytes]


@dataclass(frozen=True)
class GapSentences:
    """How a document's gap sentences are chosen. Raises ValueError on options that do not fit."""

    strategy: str = "ind-orig"
    """Ind: the sentences with the best scores, each against all others; Seq: one after the other,
    the one that makes the chosen together score best against the rest; Orig counts repeated words,
    Uniq does not; lead: the first sentences; random: any."""

    metric: str = "f1"
    """ROUGE-1 F1, precision (shared words per word chosen) or recall (per word of the rest)."""

    ratio: float = RATIO
    """Share of the sentences to choose, rounded down."""

    ratio_range: tuple[float, float] | None = None
    """Lowest and highest share: each document's ratio is drawn between them, in place of `ratio`.
    PEGASUS (mixed & stochastic): 0.15 to 0.45."""

    stemming: bool = False
    """Compare Porter stems, as rouge-score does with use_stemmer."""

    stopwords: bool = False
    """Leave STOPWORDS out of all counts."""

    noise: float = 0.0
    """Each score is multiplied by a number drawn between 1 - noise and 1 + noise (Ind only).
    PEGASUS (mixed & stochastic): 0.2."""

    minimum_sentences: int = 0
    """1: a document of two sentences or more gives at least one, as PEGASUS's code has it."""

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
                    f"--ratio_range is {' '.join(map(str, self.ratio_range))}, expected a lowest "
                    "and a highest share between 0 and 1, as 0.15 0.45"
                )
            if self.ratio != RATIO:
                raise ValueError(
                    f"--ratio {self.ratio} and --ratio_range exclude each other; leave one out"
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
                f"--{idle[0]} has no effect with --strategy {self.strategy}; leave it out or "
                "take --strategy ind-orig"
            )

    @property
    def is_random(self) -> bool:
        """Whether `select` needs a draw."""
        return self.strategy == "random" or self.noise > 0 or self.ratio_range is not None

    def select(self, sentences: list[str], draw: random.Random | None = None) -> list[int]:
        """Indices, ascending, of a document's gap sentences; equal scores go to the earlier one.

        At least one sentence always remains. Raises ValueError if the choice is random and there
        is no `draw` (see `document_draw`).
        """
        if self.is_random and draw is None:
            raise ValueError("these options choose at random: pass select a draw")
        count = self._count(len(sentences), draw)
        if count == 0 or self.strategy == "lead":
            return list(range(count))
        if self.strategy == "random":
            return _best([draw.random() for _ in sentences], count)  # type: ignore[union-attr]
        if self.strategy.startswith("seq"):
            return sorted(self._greedy(self._words(sentences), count))
        scores = self.scores(sentences)
        if draw is not None and self.noise:
            scores = [score * (1 + self.noise * (2 * draw.random() - 1)) for score in scores]
        return _best(scores, count)

    def scores(self, sentences: list[str]) -> list[float]:
        """Each sentence's ROUGE-1 `metric` against all the others together, without noise.

        Precision and recall are rouge-score's own floats. F1 is 2 overlap / (|s| + |rest|) in one
        division; rouge-score's, made of two rounded numbers, may differ in the last digit.
        """
        words = self._words(sentences)
        totals = Counter(chain.from_iterable(words))
        metric = self._metric(totals)
        return [metric(o, len(s)) for o, s in zip(_overlaps(words, totals), words, strict=True)]

    @property
    def _uniq(self) -> bool:
        return self.strategy.endswith("uniq")

    def _count(self, sentences: int, draw: random.Random | None) -> int:
        ratio = self.ratio
        if draw is not None and self.ratio_range is not None:
            lowest, highest = self.ratio_range
            ratio = lowest + (highest - lowest) * draw.random()
        # The tiny addend undoes rounding: 0.29 * 100 is 28.999999999999996.
        count = int(ratio * sentences + 1e-9)
        return max(0, min(max(count, self.minimum_sentences), sentences - 1))

    def _words(self, sentences: list[str]) -> list[Words]:
        """Each sentence's words as they are counted: for Uniq each once."""
        words = [rouge_words(sentence) for sentence in sentences]
        if self.stopwords:
            words = [[word for word in sentence if word not in STOPWORDS] for sentence in words]
        if self.stemming:
            words = [list(map(_stem, sentence)) for sentence in words]
        return [list(dict.fromkeys(sentence)) for sentence in words] if self._uniq else words

    def _metric(self, totals: Counter[bytes]) -> Callable[[int, int], float]:
        """ROUGE-1 as a function of overlap and length of the candidate, given all words' counts.

        Orig: lengths of candidate and rest add up to the document's. Uniq: a word of both sides
        counts on both, so they add up to the distinct words plus the overlap.

        All three are one correctly rounded division of integers: equal scores are equal floats,
        and different ones, at least 1 / n^2 apart, are different floats below n = 2^26 words.
        """
        total = len(totals) if self._uniq else totals.total()
        shared = int(self._uniq)

        def f1(overlap: int, length: int) -> float:
            return 2 * overlap / (total + shared * overlap) if total else 0.0

        def precision(overlap: int, length: int) -> float:
            return overlap / length if length else 0.0

        def recall(overlap: int, length: int) -> float:
            rest = total + shared * overlap - length
            return overlap / rest if rest else 0.0

        return {"f1": f1, "precision": precision, "recall": recall}[self.metric]

    def _greedy(self, words: list[Words], count: int) -> list[int]:
        """The sentences that Seq takes, in that order.

        A sentence's gain, what it adds to the overlap of chosen and rest, never grows as others
        are chosen: each word's share is concave in its chosen occurrences, min(k, n - k), for Uniq
        min(k, n - k, 1). With Uniq what it adds to the chosen length shrinks too, each word lost
        there being lost to the gain as well. Neither can raise a score, all being at most 1. So a
        gain worked out earlier is a bound, and a bound that still holds when it is the best is
        the best sentence (Minoux 1978). Sentences of equal bounds wait in one heap, by index.
        A bound that fails falls by one or more, so a sentence of n words fails 2 n times at most.
        """
        totals = Counter(chain.from_iterable(words))
        metric = self._metric(totals)
        sized = self.metric != "f1"  # F1 does not depend on the chosen length
        chosen: dict[bytes, int] = dict.fromkeys(totals, 0)

        def gain(i: int) -> tuple[int, int]:
            """What a sentence adds now to the overlap, and to the chosen length."""
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

        waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for i, more in enumerate(_overlaps(words, totals)):
            waiting[more, len(words[i]) * sized].append(i)  # ascending, so a heap
        picks: list[int] = []
        overlap = length = 0
        while len(picks) < count:
            bounds = [
                (-metric(overlap + more, length + longer), heap[0], (more, longer))
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
                    heappush(bounds, (-metric(overlap + now[0], length + now[1]), i, now))
            picks.append(i)
            overlap, length = overlap + now[0], length + now[1]
            for word in words[i]:
                chosen[word] += 1
        return picks


def select_gap_sentences(
    sentences: list[str], ratio: float = RATIO, strategy: str = "ind-orig"
) -> list[int]:
    """Indices, ascending, of the floor(ratio * M) sentences that `strategy` chooses of M.

    Fewer than 1 / ratio sentences give none. Raises ValueError as GapSentences does.
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

    With a `mask_id`, a gap sentence becomes that one id with probability `share`, else it stays
    as it is: PEGASUS's and LongT5's code mask 0.9 and leave 0.1. Without one, as in LOCOST, it is
    removed. Raises ValueError on a share that is not above 0 and at most 1, below 1 without a mask
    or without a draw.
    """
    if not 0 < share <= 1:
        raise ValueError(f"--mask_share is {share}, expected above 0 and at most 1")
    if share < 1 and (mask_id is None or draw is None):
        raise ValueError(f"--mask_share {share} needs a mask token (--mask_token) and a draw")
    chosen = set(gaps)
    if mask_id is None:
        return [sentence for i, sentence in enumerate(ids) if i not in chosen]
    return [
        [mask_id] if i in chosen and (draw is None or draw.random() < share) else sentence
        for i, sentence in enumerate(ids)
    ]


def document_draw(text: str, seed: int) -> random.Random:
    """Random numbers that depend on a document's text and the seed alone.

    Only its `random()` is used here, whose values Python keeps from version to version.
    """
    digest = hashlib.blake2b(f"{seed} {text}".encode("utf-8", "surrogatepass"), digest_size=16)
    return random.Random(int.from_bytes(digest.digest(), "big"))


def rouge_words(text: str) -> Words:
    """Words as rouge-score sees them without its stemmer: lower case, runs of a-z and 0-9.

    Lower case comes first, as it makes ASCII of other letters (the Kelvin sign becomes k).
    """
    return text.lower().encode("ascii", "replace").translate(SEPARATED).split()


@lru_cache(2**18)
def _stem(word: bytes) -> bytes:
    """rouge-score with use_stemmer: Porter's stem of words longer than three letters."""
    return _porter()(word.decode()).encode() if len(word) > 3 else word


@lru_cache(1)
def _porter() -> Callable[[str], str]:
    from nltk.stem.porter import PorterStemmer  # rouge-score's; slow to import

    return PorterStemmer().stem


def _overlaps(words: list[Words], totals: Counter[bytes]) -> list[int]:
    """Each sentence's clipped unigram overlap with all the others: sum of min(c, total - c).

    That is its length, less its words that appear once in the document, less 2 c - total for
    those with more than half of their occurrences in it, which needs repeated words.
    """
    once = {word for word, n in totals.items() if n == 1}
    overlaps = []
    for sentence in words:
        distinct = set(sentence)
        overlap = len(sentence) - len(distinct & once)
        if len(distinct) < len(sentence):
            for word, n in Counter(sentence).items():
                if n > 1 and 2 * n > totals[word]:
                    overlap -= 2 * n - totals[word]
        overlaps.append(overlap)
    return overlaps


def _best(scores: list[float], count: int) -> list[int]:
    """Indices, ascending, of the `count` highest scores; of equal ones, the first."""
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)  # keeps ties in order
    return sorted(order[:count])
