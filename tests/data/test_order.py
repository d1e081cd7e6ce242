"""The global order: every sample once an epoch, whatever the shards; a function of the step."""

import hashlib
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest

from pipeline.data.order import WINDOW_SHARDS, GlobalOrder, SampleRef


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


def test_the_order_of_one_dataset_never_changes():
    """What runs already begun rely on: written down from the first version of the order."""
    assert indices(GlobalOrder([(5, 0, 11, 3)], 6, seed=3), range(5)) == [
        2, 14, 4, 10, 5, 15, 1, 12, 8, 17, 18, 13, 3, 16, 0, 11, 6, 9, 7, 7, 17, 16, 2, 13, 6, 4,
        9, 0, 3, 11,
    ]  # fmt: skip
    order = GlobalOrder([tuple(range(3 * WINDOW_SHARDS))], 32, seed=7)
    long = np.array(indices(order, range(200)), "<i8").tobytes()
    assert hashlib.sha256(long).hexdigest() == (
        "b7b6006a54dc3927124077e585f74eedfeaf601714ad663781f2fd03dbe78fb8"
    )


@pytest.mark.parametrize("weights", [(1, 0.25), (0.3, 1, 2.7), (1, 1e-3), (1, 1, 1, 1)])
def test_datasets_are_mixed_in_proportion_at_every_place(weights):
    order = GlobalOrder([(50, 30)] * len(weights), 7, seed=0, weights=weights)
    taken = np.zeros(len(weights))
    for place, ref in enumerate(flat(order, 500), start=1):
        taken[ref.dataset] += 1
        shares = place * np.array(weights) / sum(weights)
        assert np.abs(taken - shares).max() < max(1, len(weights) - 1)


def test_each_dataset_of_a_mixture_passes_through_its_own_epochs():
    sizes = ([7, 4], [3], [20, 0, 5])
    refs = flat(GlobalOrder(sizes, 10, seed=2, weights=(1, 0.5, 1)), 40)
    for number, dataset in enumerate(sizes):
        drawn = [ref.sample for ref in refs if ref.dataset == number]
        size = sum(dataset)
        for start in range(0, len(drawn) - size + 1, size):
            assert sorted(drawn[start : start + size]) == [*range(size)]


def test_a_dataset_is_read_in_the_same_order_alone_and_mixed():
    alone = flat(GlobalOrder([[9, 30]], 8, seed=5), 20)
    mixed = flat(GlobalOrder([[9, 30], [9, 30]], 8, seed=5, weights=(3, 1)), 20)
    first = [ref for ref in mixed if ref.dataset == 0]
    assert first == alone[: len(first)] and len(first) == 120
    assert [ref.sample for ref in mixed if ref.dataset == 1] != [r.sample for r in first[:40]]


def test_a_mixture_s_steps_need_no_history_and_batch_sizes_cut_one_stream():
    def order(batch_size):
        return GlobalOrder([[40], [13, 2]], batch_size, seed=1, weights=(1, 0.7))

    refs = flat(order(4), 30)
    assert refs == flat(order(12), 10)
    assert order(12).samples(9) == refs[108:]
    assert all(isinstance(ref, SampleRef) for ref in refs)


def test_shards_ahead_are_those_of_the_batch_then_of_the_next_window():
    sizes = [[10] * (2 * WINDOW_SHARDS + 3), [4, 4]]
    order = GlobalOrder(sizes, 8, seed=6, weights=(3, 1))
    ends = [list(accumulate(dataset)) for dataset in sizes]
    before: list[tuple[int, int]] = []
    for step in range(80):
        ahead = order.shards_ahead(step)
        used = {
            (ref.dataset, int(np.searchsorted(ends[ref.dataset], ref.sample, side="right")))
            for ref in order.samples(step)
        }
        assert used <= set(ahead[: 2 * WINDOW_SHARDS + 2])
        assert len(ahead) == len(set(ahead)) <= 3 * WINDOW_SHARDS + 2
        assert step == 0 or used <= set(before)  # announced one window earlier
        before = ahead


def flat(order, steps):
    return [ref for step in range(steps) for ref in order.samples(step)]
