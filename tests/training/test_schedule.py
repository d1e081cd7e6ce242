"""The learning rate against its formula, worked out by hand."""

import pytest

from pipeline.config import TrainConfig
from pipeline.training.schedule import learning_rate


def test_inverse_square_root_as_published():
    train = TrainConfig(peak_lr=0.02, warmup_steps=10_000)
    assert learning_rate(0, train) == learning_rate(10_000, train) == 0.02
    assert learning_rate(40_003, train) == pytest.approx(0.01)  # 40,004 = 4 x 10,001
    assert learning_rate(999_999, train) == pytest.approx(0.02 * (10_001 / 1e6) ** 0.5)


def test_constant():
    train = TrainConfig(schedule="constant", peak_lr=5e-4)
    assert learning_rate(0, train) == learning_rate(10**6, train) == 5e-4


def test_linear_rises_over_the_warmup_and_falls_to_the_end():
    train = TrainConfig(schedule="linear", peak_lr=0.01, warmup_steps=9, max_steps=109)
    assert learning_rate(0, train) == pytest.approx(0.001)
    assert learning_rate(9, train) == pytest.approx(0.01)  # the tenth update, after nine below it
    assert learning_rate(59, train) == pytest.approx(0.005)
    assert learning_rate(108, train) == pytest.approx(0.0001)
    assert learning_rate(500, train) == 0  # max_steps was made smaller


def test_linear_without_warmup_and_shorter_than_it():
    assert learning_rate(0, TrainConfig(schedule="linear", peak_lr=1, warmup_steps=0)) == 1
    short = TrainConfig(schedule="linear", peak_lr=1, warmup_steps=100, max_steps=4)
    assert [learning_rate(step, short) for step in range(4)] == [0.25, 0.5, 0.75, 1]
