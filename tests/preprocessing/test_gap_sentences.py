"""Gap sentences: the ranking is rouge-score's own, ties included."""

import gzip
import json
import random
from fractions import Fraction
from itertools import islice
from pathlib import Path

import pytest
from rouge_score import tokenize
from rouge_score.rouge_scorer import RougeScorer

from preprocessing.gap_sentences import rouge_tokens, select_gap_sentences
from preprocessing.sentences import split_sentences

C4 = Path(__file__).resolve().parents[2] / "../shared/data/c4"
SCORER = RougeScorer(["rouge1"], use_stemmer=False)


def rouge_f1(sentences: list[str], i: int) -> Fraction:
    """ROUGE-1 F1 of sentence i against the others by rouge-score, as an exact fraction.

    rouge-score gives overlap / |s| and overlap / |r| in floats; as the lengths are known, the
    integer overlap comes back exactly.
    """
    rest = " ".join(sentences[:i] + sentences[i + 1 :])
    score = SCORER.score(rest, sentences[i])["rouge1"]
    lengths = [len(tokenize.tokenize(text, None)) for text in (sentences[i], rest)]
    overlap = round(score.precision * lengths[0])
    assert overlap == round(score.recall * lengths[1])
    return Fraction(2 * overlap, sum(lengths)) if sum(lengths) else Fraction(0)


def by_rouge_score(sentences: list[str], ratio: Fraction) -> list[int]:
    count = int(ratio * len(sentences))
    order = sorted(range(len(sentences)), key=lambda i: (-rouge_f1(sentences, i), i))
    return sorted(order[:count])


@pytest.mark.skipif(not C4.is_dir(), reason="the C4 sample is not beside the repository")
def test_equals_rouge_score_on_c4():
    compared = 0
    with gzip.open(C4 / "c4-train.00000-of-00002.json.gz") as file:
        for line in islice(file, 90):
            sentences = split_sentences(json.loads(line)["text"])
            if len(sentences) <= 60:
                expected = by_rouge_score(sentences, Fraction(1, 5))
                assert select_gap_sentences(sentences) == expected
                compared += 1
    assert compared > 70


def test_equals_rouge_score_on_made_up_text():
    rng = random.Random(0)
    words = ["a", "B", "c's", "naïve", "42", "x-y", "§", "İ", "ﬁn", "_", "don’t"]
    for _ in range(150):
        sentences = [
            " ".join(rng.choices(words, k=rng.randint(0, 7))) for _ in range(rng.randint(0, 25))
        ]
        ratio = rng.choice([Fraction(1, 10), Fraction(1, 5), Fraction(3, 10), Fraction(1, 2)])
        assert select_gap_sentences(sentences, float(ratio)) == by_rouge_score(sentences, ratio)


def test_tokens_are_rouge_scores():
    for text in ("It's 3.14—OK?", "ÀÉ naïve İstanbul", "", "___", "a\tb\nc  d", "ﬁ ² Ⅷ"):
        assert rouge_tokens(text) == tokenize.tokenize(text, None)


def test_ties_go_to_the_earlier_sentence():
    assert select_gap_sentences(["same words here"] * 10) == [0, 1]
    assert select_gap_sentences([""] * 5) == [0]


@pytest.mark.parametrize(
    ("sentences", "ratio", "count"),
    [(4, 0.2, 0), (5, 0.2, 1), (15, 0.2, 3), (100, 0.29, 29), (10, 0.7, 7), (0, 0.2, 0)],
)
def test_counts_are_floors(sentences, ratio, count):
    assert len(select_gap_sentences([f"w{i}" for i in range(sentences)], ratio)) == count


def test_refusals():
    with pytest.raises(ValueError, match="'lead', expected one of ind-orig"):
        select_gap_sentences(["a"], strategy="lead")
    for ratio in (0, 1, -0.5, float("nan")):
        with pytest.raises(ValueError, match="ratio is"):
            select_gap_sentences(["a"], ratio)
