"""ROUGE against rouge-score, its means and intervals."""

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from pipeline.scoring.rouge import (
    aggregate,
    best,
    compare,
    count_letters,
    letters_dropped,
    mean_rouge,
    readable,
    recipe,
    score,
    score_pairs,
)

TYPES = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
PREDICTION = "The mill stands by the river. Children watched herons there! Nobody came."
REFERENCES = [
    "The old mill stands by a river.\nThree children watch herons.",
    "Nobody came to the mill.",
]


def test_scores_are_those_of_the_package_called_by_hand():
    sentences = "The mill stands by the river.\nChildren watched herons there!\nNobody came."
    for stemmer in (False, True):
        scorer = RougeScorer(TYPES, use_stemmer=stemmer)
        by_hand = [scorer.score(reference, sentences) for reference in REFERENCES]
        pairs = score_pairs(PREDICTION, REFERENCES, stemmer)
        for pair, hand in zip(pairs, by_hand, strict=True):
            assert pair == {name: hand[name].fmeasure for name in TYPES}
        averaged = score(PREDICTION, REFERENCES, stemmer)
        multi = scorer.score_multi(REFERENCES, sentences)
        for name in TYPES:
            assert averaged[name] == pytest.approx(sum(hand[name].fmeasure for hand in by_hand) / 2)
            assert best(pairs)[name] == multi[name].fmeasure


def test_values_computed_by_hand():
    # 3 of 4 words shared, 1 of 3 bigrams; longest common subsequence a b d.
    scores = score("a b x d", ["a b c d"])
    assert scores["rouge1"] == scores["rougeL"] == pytest.approx(0.75)
    assert scores["rouge2"] == pytest.approx(1 / 3)
    # Two sentences swapped: 1 for the summary-level LCS, one half for the plain one.
    scores = score("Dogs ran home. Cats sat there.", ["Cats sat there.\nDogs ran home."])
    assert scores["rougeLsum"] == 1
    assert scores["rougeL"] == 0.5
    assert score("", ["a b"])["rouge1"] == score("été", ["日本"])["rougeLsum"] == 0
    with pytest.raises(ValueError, match="empty"):
        score("a", [])


def test_mean_rouge_takes_the_given_last_type():
    scores = {"rouge1": 0.3, "rouge2": 0.1, "rougeL": 0.2, "rougeLsum": 0.5}
    assert mean_rouge(scores) == pytest.approx(0.3)
    assert mean_rouge(scores, last="rougeL") == pytest.approx(0.2)
    # The paper's own table: LOCOST on arXiv, 43.8/17.0/39.7, compared by 33.5 (notes, figure 5).
    paper = {"rouge1": 43.8, "rouge2": 17.0, "rougeLsum": 39.7}
    assert mean_rouge(paper) == pytest.approx(33.5, abs=0.05)


def test_intervals_hold_the_mean_and_have_the_width_of_a_normal_one():
    rng = np.random.default_rng(1)
    values = rng.uniform(0, 1, 400)
    scores = [dict.fromkeys(TYPES, float(value)) for value in values]
    interval = aggregate(scores)["rouge1"]
    assert interval["value"] == pytest.approx(100 * values.mean())
    half_width = 1.96 * 100 * values.std() / 20
    assert interval["high"] - interval["value"] == pytest.approx(half_width, rel=0.15)
    assert interval["value"] - interval["low"] == pytest.approx(half_width, rel=0.15)
    assert aggregate(scores)["mean_rouge"] == pytest.approx(interval)
    assert aggregate(scores, seed=3)["rouge1"]["low"] != interval["low"]
    with pytest.raises(ValueError, match="no scores"):
        aggregate([])


def test_comparison_is_paired():
    rng = np.random.default_rng(2)
    theirs = [dict.fromkeys(TYPES, float(value)) for value in rng.uniform(0, 0.9, 50)]
    ours = [{name: value + 0.1 for name, value in scores.items()} for scores in theirs]
    difference = compare(ours, theirs)["mean_rouge"]
    # A constant difference has no spread, however much the scores themselves have.
    assert difference == pytest.approx({"value": 10, "low": 10, "high": 10})
    with pytest.raises(ValueError, match="pair"):
        compare(ours, theirs[1:])


def test_texts_that_rouge_cannot_read_are_recognised():
    assert readable("été 3") and readable("A")
    assert not readable("") and not readable("日本、。")
    assert recipe()["package"] == "rouge-score 0.1.2"


@pytest.mark.parametrize(
    "text",
    ["A mill, 1905.", "Летом 1905 родился художник.", "Äneas K\u212a ﬁsh café", "日本 x2", "12"],
)
def test_letters_dropped_are_those_that_the_package_does_not_read(text):
    words = "".join(DefaultTokenizer(use_stemmer=False).tokenize(text))
    letters = sum(character.isalpha() for character in text.lower())
    read = sum(character.isalpha() for character in words)
    assert count_letters(text) == (letters, letters - read)


def test_the_share_of_dropped_letters_is_over_all_texts():
    assert letters_dropped(["mill", "мост", "Ω1905"]) == pytest.approx(5 / 9)
    assert letters_dropped([]) == letters_dropped(["1905"]) == 0
