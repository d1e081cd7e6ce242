"""Micro-batches: every sample once, equal costs, EOS kept, only the real length kept."""

import itertools

import numpy as np
import pytest
import torch
from large_dataset import lengths_of

from pipeline.data.batches import Batches
from pipeline.data.buckets import bucket
from pipeline.data.collate import IGNORED, collate, truncate
from pipeline.data.order import GlobalOrder
from pipeline.data.planning import cut, micro_batches, padded_cost
from pipeline.shards import Dataset, Sample

EOS = 1


@pytest.mark.parametrize("parts", [1, 2, 5, 8])
def test_cut_is_a_partition_with_the_smallest_largest_cost(parts):
    rng = np.random.default_rng(0)
    for count in (parts, parts + 1, 9):
        lengths = rng.integers(1, 20, (max(count, parts), 2))
        runs = cut(lengths, parts)
        assert len(runs) == parts
        assert sorted(itertools.chain(*runs)) == [*range(len(lengths))]
        costs = [padded_cost(lengths[run]) for run in runs]
        assert costs == sorted(costs, reverse=True)
        # every way of cutting the sorted batch into that many runs, tried
        order = np.lexsort((lengths[:, 1], lengths[:, 0]))[::-1]
        best = min(
            max(padded_cost(lengths[order[a:b]]) for a, b in itertools.pairwise(bounds))
            for inner in itertools.combinations(range(1, len(order)), parts - 1)
            for bounds in [(0, *inner, len(order))]
        )
        assert costs[0] == best


def test_cut_balances_a_real_batch():
    """Amendment 1: batch 256, 16 ranks, accumulation 2."""
    rng = np.random.default_rng(1)
    for _ in range(5):
        lengths = lengths_of(rng, 256)
        runs = cut(lengths, 32)
        costs = [padded_cost(lengths[run]) for run in runs]
        loads = [sum(costs[rank::16]) for rank in range(16)]
        assert np.mean(loads) >= 0.85 * max(loads)
        real = lengths[:, 0].sum()
        padded = sum(len(run) * lengths[run, 0].max() for run in runs)
        assert real >= 0.94 * padded


def test_a_plan_is_the_same_on_all_ranks_and_names_what_is_read(dataset_folder):
    dataset = Dataset(dataset_folder)
    order = GlobalOrder([[shard.samples for shard in dataset.shards]], 12, seed=4)
    one, two = (Batches([dataset], order, rank, 2, 2, 20, 9) for rank in (0, 1))
    plan = one.plan(3)
    assert plan.parts == two.plan(3).parts
    shares = [one.step(3), two.step(3)]
    shapes = [(*m.input_ids.shape, m.labels.shape[1]) for k in (0, 1) for m in
              (share.micro_batches[k] for share in shares)]  # fmt: skip
    assert shapes == [tuple(shape) for shape in plan.shapes.tolist()]
    assert {source for _, source, _ in shapes} <= {8, 16, 20}  # 20: the limit
    assert {target for *_, target in shapes} <= {8, 9}


def test_buckets_are_few_and_close():
    lengths = np.arange(1, 2**16)
    padded = bucket(lengths)
    assert (padded >= lengths).all() and (np.diff(padded) >= 0).all()
    assert len(np.unique(padded[: 2**14])) == 224 and len(np.unique(padded[:4096])) == 160
    assert (padded < 33 / 32 * lengths)[256:].all() and (padded < lengths + 8)[:256].all()
    assert (bucket(padded) == padded).all() and (padded % 8 == 0).all()
    assert bucket(1) == 8 and bucket(65) == 72 and bucket(100_000) == 100_352


def test_buckets_leave_most_positions_real():
    """Amendment 1's batches: 256 samples for 16 ranks x 2; most of what they add is in sources."""
    rng = np.random.default_rng(1)
    real, exact, padded = 0, 0, 0
    for _ in range(20):
        lengths = lengths_of(rng, 256)
        _, shapes = micro_batches(lengths, 32, (4096, 910))
        real += lengths.sum()
        exact += sum(padded_cost(lengths[run]) for run in cut(lengths, 32))
        padded += shapes[:, 0] @ shapes[:, 1:].sum(axis=1)
    assert padded <= 1.015 * exact
    assert real >= 0.82 * padded


def test_fewer_samples_than_parts_is_refused():
    with pytest.raises(ValueError, match="3 samples cannot fill 4"):
        cut(np.ones((3, 2), dtype=np.int64), 4)


def test_truncation_keeps_the_end_of_sequence():
    ids = np.array([5, 6, 7, 8, EOS], dtype=np.uint16)
    assert truncate(ids, 3).tolist() == [5, 6, EOS]
    assert truncate(ids, 5).tolist() == truncate(ids, 0).tolist() == ids.tolist()


def test_collate_pads_to_a_bucket_within_the_limit():
    one = Sample(np.array([4, 5, EOS], np.uint16), np.array([9, EOS], np.uint16), {})
    two = Sample(np.array([6, EOS], np.uint16), np.array([8, 7, 3, EOS], np.uint16), {})
    batch = collate([one, two], source_length=0, target_length=3)
    assert batch.input_ids.tolist() == [[4, 5, EOS, *[0] * 5], [6, EOS, *[0] * 6]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, *[0] * 5], [1, 1, *[0] * 6]]
    assert batch.labels.tolist() == [[9, EOS, IGNORED], [8, 7, EOS]]
    assert batch.labels.dtype == torch.int64


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (2, 1), (2, 2), (4, 3)])
def test_ranks_share_the_global_batch_exactly(dataset_folder, ranks, accumulation):
    dataset = Dataset(dataset_folder)
    order = GlobalOrder([[shard.samples for shard in dataset.shards]], 12, seed=4)
    for step in range(4):
        wanted = sorted(
            tuple(truncate(dataset[ref.sample].target, 9).tolist()) for ref in order.samples(step)
        )
        shares = [
            Batches([dataset], order, rank, ranks, accumulation, 20, 9).step(step)
            for rank in range(ranks)
        ]
        found = sorted(
            tuple(row[row != IGNORED].tolist())
            for share in shares
            for micro in share.micro_batches
            for row in micro.labels
        )
        assert found == wanted
        assert {len(share.micro_batches) for share in shares} == {accumulation}
        tokens = sum(len(target) for target in wanted)
        assert {share.target_tokens for share in shares} == {tokens}
        real = sum(int(m.attention_mask.sum()) for share in shares for m in share.micro_batches)
        padded = sum(m.attention_mask.numel() for share in shares for m in share.micro_batches)
        assert shares[0].source_tokens == real
        assert shares[0].source_fill == pytest.approx(real / padded)
