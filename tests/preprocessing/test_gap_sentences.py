"""Gap sentences: scores, ranks and greedy selections equal rouge-score's, ties included."""

import gzip
import json
import random
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice, product
from pathlib import Path

import pytest
from made_up_text import document
from rouge_score import tokenize
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from pipeline.common.sentences import split_sentences
from pipeline.common.words import STOPWORDS, rouge_words
from preprocessing.gap_sentences import (
    METRICS,
    GapSentences,
    document_draw,
    mask_gap_sentences,
    select_gap_sentences,
)

C4 = Path(__file__).resolve().parents[2] / "../shared/data/c4"
needs_c4 = pytest.mark.skipif(not C4.is_dir(), reason="the shared C4 sample is not available")


@lru_cache(2)
def rouge_tokenizer(stemming: bool) -> DefaultTokenizer:
    """rouge-score's tokenizer; its stemmer caches, as each document is read many times."""
    tokenizer = DefaultTokenizer(stemming)
    if stemming:
        tokenizer._stemmer.stem = lru_cache(None)(tokenizer._stemmer.stem)
    return tokenizer


def counted_words(options: GapSentences, text: str) -> list[str]:
    """rouge-score's words of a text that the options count."""
    if options.stopwords:
        words = tokenize.tokenize(text, None)
        text = " ".join(word for word in words if word.encode() not in STOPWORDS)
    return rouge_tokenizer(options.stemming).tokenize(text)


class Tokenized:
    """A tokenizer for texts that are lists of words already."""

    def __init__(self, uniq: bool) -> None:
        self.uniq = uniq

    def tokenize(self, words: list[str]) -> list[str]:
        return sorted(set(words)) if self.uniq else words


class Reference:
    """One document scored by rouge-score."""

    def __init__(self, options: GapSentences, sentences: list[str]) -> None:
        self.metric = options.metric
        self.sentences = [counted_words(options, sentence) for sentence in sentences]
        # So the words of any selection are those of its joined text.
        assert counted_words(options, " ".join(sentences)) == [*chain(*self.sentences)]
        self.tokenizer = Tokenized(options.strategy.endswith("uniq"))
        self.scorer = RougeScorer(["rouge1"], tokenizer=self.tokenizer)

    def score(self, chosen: list[int]) -> tuple[Fraction, float]:
        """`metric` of the chosen sentences together against the others, exact and as a float.

        rouge-score gives overlap / |s| and overlap / |rest| in floats; with the known lengths, the
        integer overlap is recovered exactly.
        """
        candidate = [*chain(*(self.sentences[i] for i in chosen))]
        others = [*chain(*(s for i, s in enumerate(self.sentences) if i not in chosen))]
        result = self.scorer.score(others, candidate)["rouge1"]
        length, rest = (len(self.tokenizer.tokenize(text)) for text in (candidate, others))
        overlap = round(result.precision * length)
        assert overlap == round(result.recall * rest)
        above, below, value = {
            "f1": (2 * overlap, length + rest, result.fmeasure),
            "precision": (overlap, length, result.precision),
            "recall": (overlap, rest, result.recall),
        }[self.metric]
        return Fraction(above, max(below, 1)), value

    def best(self, count: int) -> list[int]:
        order = sorted(range(len(self.sentences)), key=lambda i: (-self.score([i])[0], i))
        return sorted(order[:count])

    def greedy(self, count: int) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < count:
            left = [i for i in range(len(self.sentences)) if i not in chosen]
            chosen.append(max(left, key=lambda i: (self.score([*chosen, i])[0], -i)))
        return sorted(chosen)


@lru_cache(1)
def c4_documents() -> list[list[str]]:
    documents = []
    for path in sorted(C4.glob("c4-train.*.json.gz")):
        with gzip.open(path) as file:
            documents += [split_sentences(json.loads(line)["text"]) for line in file]
    return documents


def check_scores(options: GapSentences, documents: list[list[str]]) -> None:
    """Every sentence's score equals rouge-score's, and the selection follows its exact ranks."""
    for sentences in documents:
        reference = Reference(options, sentences)
        scores = options.scores(sentences)
        pairs = [reference.score([i]) for i in range(len(sentences))]
        assert scores == [float(exact) for exact, _ in pairs]
        assert scores == pytest.approx([value for _, value in pairs], rel=1e-15, abs=0)
        chosen = options.select(sentences)
        order = sorted(range(len(sentences)), key=lambda i: (-pairs[i][0], i))
        assert chosen == sorted(order[: len(chosen)])
        assert len(chosen) == len(sentences) // 5


@needs_c4
def test_scores_are_rouge_scores_on_c4():
    documents = [d for d in islice(c4_documents(), 150) if len(d) <= 60]
    for metric in METRICS:
        check_scores(GapSentences(metric=metric), documents)


@needs_c4
@pytest.mark.parametrize("options", [{"stemming": True}, {"stopwords": True}, {}])
def test_counting_options_are_rouge_scores_on_c4(options):
    documents = [d for d in islice(c4_documents(), 40) if len(d) <= 60]
    check_scores(GapSentences(strategy="ind-uniq", **options), documents)
    check_scores(GapSentences(strategy="ind-orig", **options), documents)


@needs_c4
@pytest.mark.soak
@pytest.mark.parametrize("stemming", [False, True])
def test_every_score_of_the_c4_sample_is_rouge_scores(stemming):
    check_scores(GapSentences(stemming=stemming), c4_documents())


@needs_c4
@pytest.mark.parametrize("strategy", ["seq-orig", "seq-uniq"])
def test_seq_is_the_brute_force_greedy_on_c4(strategy):
    documents = [d for d in c4_documents() if 5 <= len(d) <= 25][:25]
    for sentences in documents:
        options = GapSentences(strategy=strategy)
        expected = Reference(options, sentences).greedy(len(sentences) // 5)
        assert options.select(sentences) == expected


ODD_WORDS = ["a", "B", "c's", "naïve", "42", "x-y", "§", "İ", "ﬁn", "_", "don’t", "running", "K"]


def odd_documents(seed: int, count: int, longest: int = 7) -> Iterator[list[str]]:
    """Documents of few distinct words, so that many scores tie; some sentences have no words."""
    rng = random.Random(seed)
    for _ in range(count):
        words = rng.sample(ODD_WORDS, rng.randint(1, len(ODD_WORDS)))
        yield [
            " ".join(rng.choices(words, k=rng.randint(0, longest)))
            for _ in range(rng.randint(0, 12))
        ]


@pytest.mark.parametrize("strategy", ["ind-orig", "ind-uniq", "seq-orig", "seq-uniq"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("counting", [{}, {"stemming": True, "stopwords": True}])
def test_equals_rouge_score_on_made_up_text(strategy, metric, counting):
    ratios = (0.2, 0.5, 0.8)
    for sentences, ratio in product(odd_documents(seed=3, count=25), ratios):
        options = GapSentences(strategy=strategy, metric=metric, ratio=ratio, **counting)
        reference = Reference(options, sentences)
        count = int(Fraction(str(ratio)) * len(sentences))
        expected = reference.greedy if strategy.startswith("seq") else reference.best
        assert options.select(sentences) == expected(count)


@pytest.mark.parametrize("metric", METRICS)
def test_equals_rouge_score_on_made_up_documents(metric):
    rng = random.Random(5)
    for sentences in [split_sentences(document(rng, rng.randint(1, 30))) for _ in range(20)]:
        check_scores(GapSentences(metric=metric), [sentences])


def test_words_are_rouge_scores():
    texts = [
        "It's 3.14—OK?",
        "ÀÉ naïve İstanbul",
        "",
        "___",
        "a\tb\nc  d",
        "ﬁ ² Ⅷ",
        "273 K",
        "a\0b",
    ]
    for text in [
        *texts,
        "ΑΣ ΑΣ",
        "\ud800x",
        "A\x1cB\x85C\u2028D",
        "".join(map(chr, range(0x3000))),
    ]:
        if "\ud800" not in text:
            assert [w.decode() for w in rouge_words(text)] == tokenize.tokenize(text, None)
    assert rouge_words("\ud800x") == [b"x"]  # a lone surrogate only separates words


def test_true_ties_go_to_the_earlier_sentence():
    assert select_gap_sentences(["same words here"] * 10) == [0, 1]
    assert select_gap_sentences([""] * 5) == [0]
    for strategy in ("seq-orig", "seq-uniq", "ind-uniq"):
        assert select_gap_sentences([""] * 10, strategy=strategy) == [0, 1]


def test_ties_that_floats_break_wrongly_are_ties():
    """F1 from rounded precision and recall differs between sentences of equal overlap."""
    scorer = RougeScorer(["rouge1"])
    wrong = 0
    for sentences in odd_documents(seed=7, count=300):
        if len(sentences) < 5:
            continue
        floats = [
            scorer.score(" ".join(sentences[:i] + sentences[i + 1 :]), s)["rouge1"].fmeasure
            for i, s in enumerate(sentences)
        ]
        by_floats = sorted(range(len(floats)), key=lambda i: (-floats[i], i))
        count = len(sentences) // 2
        expected = Reference(GapSentences(), sentences).best(count)
        assert select_gap_sentences(sentences, 0.5) == expected
        wrong += sorted(by_floats[:count]) != expected
    assert wrong > 0


def test_one_division_keeps_fractions_apart():
    """Compared as floats, equal fractions are equal and different ones below 2^26 differ."""
    largest = 2**26 - 1
    assert (largest - 2) / (largest - 1) < (largest - 1) / largest
    rng = random.Random(1)
    for _ in range(20000):
        b, d = rng.randint(1, largest), rng.randint(1, largest)
        a = rng.randint(0, b)
        c = min(d, round(Fraction(a, b) * d) + rng.randint(0, 1))
        assert (a / b < c / d) == (a * d < c * b)
        assert (a / b == c / d) == (a * d == c * b)


@pytest.mark.parametrize(
    ("sentences", "ratio", "count"),
    [(4, 0.2, 0), (5, 0.2, 1), (15, 0.2, 3), (100, 0.29, 29), (10, 0.7, 7), (0, 0.2, 0)],
)
@pytest.mark.parametrize("strategy", ["ind-orig", "seq-orig", "lead"])
def test_counts_are_floors(sentences, ratio, count, strategy):
    made = [f"w{i} w" for i in range(sentences)]
    assert len(select_gap_sentences(made, ratio, strategy)) == count


def test_the_minimum_is_selected_and_one_sentence_remains():
    options = GapSentences(minimum_sentences=1)
    assert [len(options.select(["a b"] * n)) for n in (0, 1, 2, 4, 9, 10)] == [0, 0, 1, 1, 1, 2]
    assert options.select(["other", "a b", "b a c"]) == [1]
    assert len(select_gap_sentences(["a"] * 3, 1 - 1e-12)) == 2


def test_lead_and_random():
    sentences = [f"word{i}" for i in range(20)]
    assert select_gap_sentences(sentences, strategy="lead") == [0, 1, 2, 3]
    options = GapSentences(strategy="random")
    chosen = [options.select(sentences, random.Random(seed)) for seed in range(2000)]
    assert all(len(set(gaps)) == 4 and gaps == sorted(gaps) for gaps in chosen)
    often = [sum(i in gaps for gaps in chosen) for i in range(20)]
    assert all(330 < n < 470 for n in often)  # 400 plus or minus four standard deviations


def test_dynamic_ratio_is_uniform():
    options = GapSentences(strategy="lead", ratio_range=(0.15, 0.45))
    sentences = ["a"] * 1000
    counts = [len(options.select(sentences, random.Random(seed))) for seed in range(2000)]
    assert 150 <= min(counts) < 155
    assert 445 < max(counts) <= 450
    assert sum(counts) / 2000 == pytest.approx(300, abs=8)  # four standard deviations


def test_random_selections_depend_only_on_the_document():
    rng = random.Random(2)
    texts = [document(rng, 30) for _ in range(20)]
    options = GapSentences(noise=0.2, ratio_range=(0.15, 0.45))

    def choices(texts: list[str], seed: int) -> dict[str, list[int]]:
        return {
            text: options.select(split_sentences(text), document_draw(text, seed)) for text in texts
        }

    assert choices(texts, 0) == choices(texts[::-1], 0)
    assert choices(texts, 0) != choices(texts, 1)
    draws = {document_draw(text, seed).random() for text in texts for seed in (0, 1, -1)}
    assert len(draws) == 60
    assert document_draw("a text", 0).random() == 0.0028321906319717094  # on every machine


def test_noise_moves_close_scores_only():
    low, middle, high = "x x x", "the cat sat", "the dog sat by the cat"
    sentences = [low, middle, high, "the dog and the cat sat by"]
    quiet = GapSentences(ratio=0.5)
    assert GapSentences(ratio=0.5, noise=1e-9).select(sentences, random.Random(0)) == quiet.select(
        sentences
    )
    for seed in range(100):
        noisy = GapSentences(ratio=0.75, noise=0.2).select(sentences, random.Random(seed))
        assert 0 not in noisy  # no overlap: score 0 with any noise
    options = GapSentences(ratio=0.25, noise=0.2)
    firsts = {options.select(sentences, random.Random(seed))[0] for seed in range(100)}
    assert firsts == {2, 3}


def test_stopwords_are_the_published_list():
    assert len(STOPWORDS) == 127
    assert {b"the", b"of", b"s", b"t", b"don", b"now"} <= STOPWORDS


def test_mask_token():
    ids = [[10 + i, 20 + i] for i in range(10)]
    gaps = [2, 3, 7]
    kept = [ids[i] for i in range(10) if i not in gaps]
    assert mask_gap_sentences(ids, gaps) == kept
    masked = [[5] if i in gaps else ids[i] for i in range(10)]
    assert mask_gap_sentences(ids, gaps, mask_id=5) == masked
    counts = []
    for seed in range(1000):
        source = mask_gap_sentences(ids, gaps, 5, 0.9, random.Random(seed))
        assert len(source) == 10
        assert all(source[i] == ids[i] or (i in gaps and source[i] == [5]) for i in range(10))
        counts.append(source.count([5]))
    assert sum(counts) == pytest.approx(2700, abs=66)  # four standard deviations


@pytest.mark.parametrize("strategy", ["ind-orig", "ind-uniq", "seq-orig", "seq-uniq"])
def test_very_long_documents(strategy):
    options = GapSentences(strategy=strategy, minimum_sentences=1)
    rng = random.Random(4)
    made = [" ".join(rng.choices(ODD_WORDS, k=6)) for _ in range(20_000)]
    assert len(options.select(made)) == 4_000
    assert options.select(["word " * 500_000, "another"]) == [0]
    assert options.select(["w" * 2_000_000]) == []


def test_refusals():
    with pytest.raises(ValueError, match="--strategy is 'best', expected one of ind-orig"):
        select_gap_sentences(["a"], strategy="best")
    for ratio in (0, 1, -0.5, float("nan")):
        with pytest.raises(ValueError, match="--ratio is"):
            select_gap_sentences(["a"], ratio)
    for options, message in [
        ({"metric": "rouge"}, "--metric is 'rouge'"),
        ({"ratio_range": (0.5, 0.2)}, "--ratio_range is 0.5 0.2"),
        ({"ratio_range": (0.0, 0.2)}, "--ratio_range is 0.0 0.2"),
        ({"ratio_range": (0.2,)}, "--ratio_range is 0.2"),
        ({"ratio_range": (0.1, 0.2), "ratio": 0.3}, "exclude each other"),
        ({"noise": -0.1}, "--noise is -0.1"),
        ({"noise": float("nan")}, "--noise is nan"),
        ({"minimum_sentences": 2}, "--minimum_sentences is 2"),
        ({"strategy": "seq-orig", "noise": 0.2}, "--noise has no effect"),
        ({"strategy": "lead", "metric": "recall"}, "--metric has no effect"),
        ({"strategy": "random", "stemming": True}, "--stemming has no effect"),
        ({"strategy": "lead", "stopwords": True}, "--stopwords has no effect"),
    ]:
        with pytest.raises(ValueError, match=message):
            GapSentences(**options)
    for options in ({"strategy": "random"}, {"noise": 0.2}, {"ratio_range": (0.1, 0.2)}):
        assert GapSentences(**options).is_random
        with pytest.raises(ValueError, match="at random"):
            GapSentences(**options).select(["a"] * 9)
    for share in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="--mask_share is"):
            mask_gap_sentences([[1]], [0], 5, share)
    for mask_id, draw in ((5, None), (None, random.Random(0))):
        with pytest.raises(ValueError, match=r"--mask_share .* needs a mask token"):
            mask_gap_sentences([[1]], [0], mask_id, 0.9, draw)
