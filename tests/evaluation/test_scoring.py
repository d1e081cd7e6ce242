"""Scores made by processes of their own, beside the generation."""

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from pipeline.evaluation.rouge import aggregate
from pipeline.evaluation.scoring import Scoring
from preprocessing.sentences import split_sentences

TYPES = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
REFERENCES = ["Three children watched the herons.\nNobody came.", "Herons fish.", "été\u2028\udc80"]


def record(index: int) -> dict:
    words = "The children are watching herons by the mill. Nobody came there. Soup!".split()
    text = " ".join(words[index % 5 : 5 + index]) + "\u2028"
    return {"index": index, "prediction": text, "references": REFERENCES[: 1 + index % 3]}


@pytest.mark.parametrize("stemmer", [False, True])
def test_scores_are_those_of_the_package_whichever_process_gave_them(stemmer):
    records = [record(index) for index in range(12)]
    hidden = {"index": 12, "prediction": "Soup.", "references": []}
    with Scoring(2, stemmer) as scoring:
        scoring.add([*records[:7], hidden])
        found = scoring.take()
        scoring.add(records[7:])
        found += scoring.take(leave=0)
    assert sorted(line["index"] for line in found) == list(range(12))
    scorer = RougeScorer(TYPES, use_stemmer=stemmer)
    for line in found:
        one = records[line["index"]]
        prediction = "\n".join(split_sentences(one["prediction"]))
        by_hand = [scorer.score(text, prediction) for text in one["references"]]
        for name in TYPES:
            values = [pair[name].fmeasure for pair in by_hand]
            assert line["scores"][name] == pytest.approx(np.mean(values))
            assert line["best"][name] == max(values)


def test_at_most_so_many_wait():
    with Scoring(1, use_stemmer=False) as scoring:
        scoring.add([record(index) for index in range(10)])
        assert len(scoring.take(leave=3)) >= 7


def test_a_process_that_breaks_is_an_error_not_a_score():
    with Scoring(1, use_stemmer=False) as scoring:
        scoring._processes[0].kill()
        scoring.add([record(0)])
        with pytest.raises(RuntimeError, match="process that scores ended with status -9"):
            scoring.take(leave=0)


def test_the_figure_of_scrolls_is_the_geometric_mean_of_the_means():
    scores = [
        dict(zip(TYPES, values, strict=True))
        for values in ((0.5, 0.2, 0.3, 0.9), (0.3, 0.0, 0.5, 0.1), (0.4, 0.1, 0.4, 0.0))
    ]
    # Means 0.4, 0.1, 0.4: not the mean of 0.31, 0 and 0.25.
    found = aggregate(scores)["geometric_mean"]
    assert found["value"] == pytest.approx(100 * (0.4 * 0.1 * 0.4) ** (1 / 3))
    assert found["low"] < found["value"] < found["high"]
    same = aggregate(scores[:1] * 5)["geometric_mean"]
    assert same["low"] == pytest.approx(same["high"])
