"""The global order: every sample once an epoch, whatever the shards; a function of the step."""

from collections import Counter

import pytest

from pipeline.data.order import WINDOW_SHARDS, GlobalOrder


def indices(order, steps):
    return [ref.sample for step in steps for ref in order.samples(step)]


@pytest.mark.parametrize("sizes", [(7,), (5, 0, 11, 3), tuple(range(3 * WINDOW_SHARDS))])
@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_every_sample_comes_once_an_epoch(sizes, batch_size):
    order = GlobalOrder([sizes], batch_size, seed=3)
    epochs = 3
    steps = -(-epochs * sum(sizes) // batch_size)
    seen = indices(order, range(steps))
    for epoch in range(epochs):
        assert sorted(seen[epoch * sum(sizes) : (epoch + 1) * sum(sizes)]) == [*range(sum(sizes))]
    assert set(Counter(seen[: epochs * sum(sizes)]).values()) == {epochs}


def test_epochs_and_seeds_differ_and_steps_need_no_history():
    order = GlobalOrder([(40, 40)], 8, seed=1)
    first, second = indices(order, range(10)), indices(order, range(10, 20))
    assert first != second
    assert first != indices(GlobalOrder([(40, 40)], 8, seed=2), range(10))
    assert order.samples(13) == GlobalOrder([(40, 40)], 8, seed=1).samples(13)


def test_batch_size_cuts_one_stream():
    small, large = GlobalOrder([(9, 30)], 4, seed=5), GlobalOrder([(9, 30)], 12, seed=5)
    assert indices(small, range(30)) == indices(large, range(10))


def test_a_window_bounds_the_shards_in_use():
    order = GlobalOrder([(10,) * (2 * WINDOW_SHARDS)], 10, seed=0)
    first_window = {i // 10 for i in indices(order, range(WINDOW_SHARDS))}
    assert len(first_window) == WINDOW_SHARDS


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        GlobalOrder([(0, 0)], 4, seed=0)
