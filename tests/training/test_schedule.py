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
