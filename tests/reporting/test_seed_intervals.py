"""Intervals over seeds and documents together."""

import numpy as np
import pytest

from pipeline.scoring.bootstrap import intervals, seed_intervals


def test_of_one_seed_they_are_those_over_documents():
    scores = np.random.default_rng(0).random((1, 40))
    found = seed_intervals({"a": {"x": scores}}, scale=100)["a/x"]
    assert found == pytest.approx(intervals([{"x": x} for x in scores[0]], scale=100)["x"])


def test_of_equal_documents_they_are_those_over_seeds():
    scores = np.repeat([[1.0], [2.0], [6.0]], 50, axis=1)
    found = seed_intervals({"a": {"x": scores}})["a/x"]  # three of the same: 1 in 27
    assert found == pytest.approx({"value": 3, "low": 1, "high": 6})


def test_names_of_a_group_share_seeds_and_all_share_documents():
    random = np.random.default_rng(1)
    scores, documents = random.random((3, 40)) + np.array([[0.0], [5], [9]]), random.random((1, 40))
    groups = {"a": {"x": scores, "y": scores + 2}, "b": {"x": documents}, "c": {"x": documents + 1}}
    found = seed_intervals(
        groups,
        derived={"paired": lambda c: c["a/y"] - c["a/x"], "apart": lambda c: c["c/x"] - c["b/x"]},
    )
    assert found["paired"] == pytest.approx({"value": 2, "low": 2, "high": 2})
    assert found["apart"] == pytest.approx({"value": 1, "low": 1, "high": 1})
    assert found["a/x"]["high"] - found["a/x"]["low"] > 5  # seeds differ, with them the group


def test_they_hold_the_truth_as_often_as_they_say():
    random, held, trials = np.random.default_rng(2), 0, 100
    for trial in range(trials):
        seeds, documents = random.normal(0, 1, (20, 1)), random.normal(0, 2, (1, 60))
        scores = seeds + documents + random.normal(0, 1, (20, 60))
        found = seed_intervals({"a": {"x": scores}}, seed=trial)["a/x"]
        held += found["low"] <= 0 <= found["high"]
    assert 0.88 <= held / trials <= 0.99


def test_other_documents_are_refused():
    with pytest.raises(ValueError, match=r"of \[3, 4\] documents"):
        seed_intervals({"a": {"x": np.zeros((2, 3))}, "b": {"x": np.zeros((2, 4))}})
