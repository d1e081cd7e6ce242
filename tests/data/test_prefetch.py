"""Batches prepared ahead: the same ones, few at a time, and errors where they belong."""

import shutil
import threading

import msgpack
import pytest
import torch

from pipeline.config import DataConfig
from pipeline.data.batches import Batches
from pipeline.data.mixture import Mixture
from pipeline.data.prefetch import STEPS_AHEAD, Prefetched
from pipeline.data.shard_cache import ShardCache
from pipeline.shards import DamagedData, Dataset


@pytest.fixture
def folder(dataset_folder, tmp_path):
    """A dataset that a test may damage."""
    return shutil.copytree(dataset_folder, tmp_path / "data")


def batches(folder, cls=Batches, rank=0, ranks=2):
    mixture = Mixture(DataConfig(train=str(folder)))
    return cls(mixture.datasets, mixture.order(8, seed=1), rank, ranks, 2)


class Counted(Batches):
    """Notes the steps that were prepared."""

    def step(self, step):
        prepared.append(step)
        return super().step(step)


prepared: list[int] = []


def assert_equal(one, two):
    assert one.target_tokens == two.target_tokens
    for a, b in zip(one.micro_batches, two.micro_batches, strict=True):
        tensors = zip(vars(a).values(), vars(b).values(), strict=True)
        assert all(torch.equal(x, y) for x, y in tensors)


def test_the_same_batches_from_any_step_on(folder):
    plain = batches(folder)
    with Prefetched(batches(folder)) as ahead:
        for step in (0, 1, 2, 3, 17, 18, 4, 4):  # in order, resumed elsewhere, and again
            assert_equal(ahead.step(step), plain.step(step))


def test_no_more_than_a_few_steps_are_prepared(folder):
    prepared.clear()
    ahead = Prefetched(batches(folder, Counted))
    ahead.step(5)
    ahead.step(6)
    ahead._thread.shutdown()  # unlike `close`, after all that was asked for
    ahead.close()
    assert prepared == [*range(5, 6 + STEPS_AHEAD + 1)]


def test_the_end_leaves_no_thread(folder):
    before = threading.active_count()
    mixture = Mixture(DataConfig(train=str(folder)))
    with Prefetched(batches(folder), ShardCache(mixture.datasets, mixture.order(8, 1))) as ahead:
        ahead.step(0)
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_the_reads_of_a_step_are_outstanding_at_once(folder, monkeypatch):
    """Each waits for all others: one after another they would wait in vain."""
    indices, samples = threading.Barrier(2, timeout=30), threading.Barrier(8, timeout=30)
    open_index, read = Dataset._open_index, Dataset.read
    first_indices, first_samples = iter(range(2)), iter(range(8))  # of step 0, not of those ahead

    def opened(self, *place):
        if next(first_indices, None) is not None:
            indices.wait()
        return open_index(self, *place)

    def read_together(self, *place):
        if next(first_samples, None) is not None:
            samples.wait()
        return read(self, *place)

    plain = batches(folder, ranks=1).step(0)
    monkeypatch.setattr(Dataset, "_open_index", opened)
    monkeypatch.setattr(Dataset, "read", read_together)
    with Prefetched(batches(folder, ranks=1)) as ahead:
        assert_equal(ahead.step(0), plain)


def test_the_first_error_in_order_is_raised_though_another_came_before(folder, monkeypatch):
    reader = batches(folder, ranks=1)
    plan = reader.plan(0)
    first, *others = [place for part in plan.parts for place in part]
    tars = {number: f"tiny-{number:05d}-00000.tar" for number in set(plan.shards.tolist())}
    for place in (first, others[-1]):
        with (folder / tars[int(plan.shards[place])]).open("r+b") as file:
            file.seek(int(plan.rows[place]["offset"]))
            file.write(b"\xc1")  # a byte that msgpack never uses
    with pytest.raises(DamagedData) as alone:
        reader.step(0)

    failed, read = threading.Event(), Dataset.read

    def first_read_last(self, shard, offset, size):
        if (shard, offset) == (plan.shards[first], plan.rows[first]["offset"]):
            failed.wait(30)
        try:
            return read(self, shard, offset, size)
        except DamagedData:
            failed.set()
            raise

    monkeypatch.setattr(Dataset, "read", first_read_last)
    before = threading.active_count()
    with Prefetched(batches(folder, ranks=1)) as ahead, pytest.raises(DamagedData) as together:
        ahead.step(0)
    assert str(together.value) == str(alone.value)
    assert tars[int(plan.shards[first])] in str(alone.value)
    assert threading.active_count() == before


def test_a_shard_lost_during_the_run_is_named_not_skipped(folder):
    lost = folder / "tiny-00002-00000.tar"
    with Prefetched(batches(folder, ranks=1)) as ahead:
        lost.unlink()
        with pytest.raises(ValueError, match=f"{lost} is missing"):
            for step in range(8):
                ahead.step(step)


def test_a_shard_cut_short_while_it_is_open_is_named(folder):
    cut = folder / "tiny-00000-00000.tar"
    with Prefetched(batches(folder, ranks=1)) as ahead:
        for step in range(4):
            ahead.step(step)
        with cut.open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(ValueError, match=f"{cut} is damaged at byte [0-9]+: .* bytes there"):
            for step in range(4 + STEPS_AHEAD, 12):
                ahead.step(step)


def test_a_damaged_payload_is_named_with_its_byte(folder):
    reader = batches(folder, ranks=1)
    offset = int(reader.datasets[0].index(0)[3]["offset"])
    tar = folder / "tiny-00000-00000.tar"
    with tar.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xc1")  # a byte that msgpack never uses
    with pytest.raises(ValueError, match=f"{tar} is damaged at byte {offset}: "):
        for step in range(4):
            reader.step(step)


def test_a_payload_of_other_lengths_than_its_index_says_is_named(folder):
    reader = batches(folder, ranks=1)
    rows = reader.datasets[0].index(0)
    tar = folder / "tiny-00000-00000.tar"
    content = bytearray(tar.read_bytes())
    # a sample put in another's place, as long in bytes: only the index tells
    one = next(k for k in range(len(rows)) if rows[k]["source_length"] != rows[0]["source_length"])
    offset, size = int(rows[one]["offset"]), int(rows[one]["size"])
    record = msgpack.unpackb(content[offset : offset + size])
    record["source"] = record["source"][:-2]
    record["target"] = record["target"] + record["target"][-2:]
    moved = msgpack.packb(record)
    assert len(moved) == size
    content[offset : offset + size] = moved
    tar.write_bytes(content)
    with pytest.raises(ValueError, match=f"{tar} is damaged at byte {offset}: .* its index says"):
        for step in range(4):
            reader.step(step)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU")
@pytest.mark.gpu
def test_batches_for_a_gpu_lie_in_pinned_memory(folder):
    with Prefetched(batches(folder), pin=True) as ahead:
        assert ahead.step(0).micro_batches[0].input_ids.is_pinned()
