"""Scores of ROUGE workers, next to generation."""

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from pipeline.common.sentences import split_sentences
from pipeline.evaluation.rouge_pool import RougePool
from pipeline.scoring.rouge import aggregate

TYPES = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
REFERENCES = ["Three children watched the herons.\nNobody came.", "Herons fish.", "été\u2028\udc80"]


def record(index: int) -> dict:
    words = "The children are watching herons by the mill. Nobody came there. Soup!".split()
    text = " ".join(words[index % 5 : 5 + index]) + "\u2028"
    return {"index": index, "prediction": text, "references": REFERENCES[: 1 + index % 3]}


@pytest.mark.parametrize("stemmer", [False, True])
def test_scores_of_all_workers_equal_the_package(stemmer):
    records = [record(index) for index in range(12)]
    hidden = {"index": 12, "prediction": "Soup.", "references": []}
    with RougePool(2, stemmer) as pool:
        pool.add([*records[:7], hidden])
        found = pool.take()
        pool.add(records[7:])
        found += pool.take(leave=0)
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


def test_take_leaves_at_most_the_given_number():
    with RougePool(1, use_stemmer=False) as pool:
        pool.add([record(index) for index in range(10)])
        assert len(pool.take(leave=3)) >= 7


def test_a_dead_worker_is_an_error_not_a_score():
    with RougePool(1, use_stemmer=False) as pool:
        pool._processes[0].kill()
        pool.add([record(0)])
        with pytest.raises(RuntimeError, match="ROUGE worker ended with status -9"):
            pool.take(leave=0)


def test_scrolls_ranks_by_the_geometric_mean_of_the_means():
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
