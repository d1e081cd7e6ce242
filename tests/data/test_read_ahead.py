"""Copies on the node's disk: the same samples, whole or not there, and none left behind."""

import resource
import shutil
import time
from pathlib import Path

import pytest
import torch

from pipeline.config import DataConfig
from pipeline.data import order as order_module
from pipeline.data.batches import Batches
from pipeline.data.mixture import Mixture
from pipeline.data.read_ahead import LOCK, ReadAhead
from pipeline.files import hold_lock
from pipeline.shards import Dataset, write_manifest, write_shard


@pytest.fixture(autouse=True)
def short_windows(monkeypatch):
    monkeypatch.setattr(order_module, "WINDOW_SHARDS", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, dataset_folder):
    """The tiny dataset's samples in eight shards: four windows."""
    source, data = Dataset(dataset_folder), tmp_path_factory.mktemp("staged") / "data"
    data.mkdir()
    shutil.copy(source.tokenizer_path, data)
    shards = [
        write_shard(
            data / f"tiny-{k:05d}-00000", [(f"{i:05d}", source[i]) for i in range(k, 26, 8)]
        )
        for k in range(8)
    ]
    write_manifest(data, {**source.manifest, "shards": shards})
    return data


def staged(folder, stage):
    """The datasets, their order in batches of 4, and who reads ahead."""
    mixture = Mixture(DataConfig(train=str(folder), stage_dir=str(stage) if stage else None))
    order = mixture.order(4, seed=2)
    return mixture, order, ReadAhead(mixture.datasets, order)


def settle(ahead: ReadAhead) -> None:
    """Wait until all that was asked for is done."""
    ahead._thread.submit(lambda: None).result(timeout=30)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {LOCK}


def wanted(mixture, order, step) -> set[str]:
    return {
        mixture.datasets[d].shards[shard].name + suffix
        for d, shard in order.shards_ahead(step)
        for suffix in (".tar", ".npy")
    }


def same(one, two) -> bool:
    return all(
        torch.equal(x, y)
        for a, b in zip(one.micro_batches, two.micro_batches, strict=True)
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def test_batches_are_the_same_and_only_wanted_shards_are_kept(folder, tmp_path):
    mixture, order, ahead = staged(folder, tmp_path)
    plain = Batches([Dataset(folder)], order, 0, 1, 2)
    reader = Batches(mixture.datasets, order, 0, 1, 2)
    copies = mixture.datasets[0].copies
    kept = set()
    for step in range(24):
        ahead.advance(step)
        settle(ahead)
        assert names(copies) == wanted(mixture, order, step)
        assert same(reader.step(step), plain.step(step))
        kept.add(frozenset(names(copies)))
    assert len(kept) >= 4
    ahead.close()
    assert [*tmp_path.iterdir()] == []
    assert same(reader.step(24), plain.step(24))  # from the originals again


def test_what_is_read_are_the_copies(folder, tmp_path):
    data = shutil.copytree(folder, tmp_path / "data")
    mixture, order, ahead = staged(data, tmp_path / "stage")
    ahead.advance(0)
    settle(ahead)
    for original in data.glob("tiny-*"):
        original.unlink()
    plain = Batches([Dataset(folder)], order, 0, 1, 2)
    assert same(Batches(mixture.datasets, order, 0, 1, 2).step(0), plain.step(0))
    ahead.close()


def test_originals_serve_until_the_copy_is_there(folder, tmp_path):
    mixture, order, ahead = staged(folder, tmp_path)
    plain = Batches([Dataset(folder)], order, 0, 1, 2)
    assert same(Batches(mixture.datasets, order, 0, 1, 2).step(0), plain.step(0))
    ahead.close()


def test_leftovers_of_a_killed_run_are_used_when_whole_else_removed(folder, tmp_path):
    mixture, order, ahead = staged(folder, tmp_path)
    ahead.advance(0)
    settle(ahead)
    copies = mixture.datasets[0].copies
    for lock in ahead._locks.values():  # the process dies: nothing is tidied up
        lock.close()
    ahead._locks.clear()
    ahead.close()
    tars = sorted(copies.glob("*.tar"))
    whole, short = tars[0].stat().st_ino, tars[1]
    short.write_bytes(short.read_bytes()[:-512])
    (copies / f".{short.name}.node-1.tmp").write_bytes(b"half")
    (copies / "tiny-99999-00000.tar").write_bytes(b"of another window")
    other = tmp_path / ("locost-" + "0" * 16)  # another dataset's killed run
    other.mkdir()
    (other / LOCK).touch()
    (other / "x.tar").touch()
    foreign = tmp_path / "locost-results"
    foreign.mkdir()

    mixture, order, ahead = staged(folder, tmp_path)
    assert not other.exists() and foreign.exists()
    ahead.advance(0)
    settle(ahead)
    assert names(copies) == wanted(mixture, order, 0)
    assert tars[0].stat().st_ino == whole
    assert short.read_bytes() == (folder / short.name).read_bytes()
    ahead.close()


def test_a_copy_cut_short_is_not_read(folder, tmp_path):
    mixture, order, ahead = staged(folder, tmp_path)
    ahead.advance(0)
    settle(ahead)
    for copy in mixture.datasets[0].copies.iterdir():
        if copy.name != LOCK:
            copy.write_bytes(copy.read_bytes()[:100])
    plain = Batches([Dataset(folder)], order, 0, 1, 2)
    assert same(Batches(mixture.datasets, order, 0, 1, 2).step(0), plain.step(0))
    ahead.close()


def test_a_full_disk_is_said_once_and_the_originals_serve(folder, tmp_path, capfd):
    mixture, order, ahead = staged(folder, tmp_path)
    plain = Batches([Dataset(folder)], order, 0, 1, 2)
    reader = Batches(mixture.datasets, order, 0, 1, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # no file may grow beyond
    try:
        for step in range(12):
            ahead.advance(step)
            settle(ahead)
            assert same(reader.step(step), plain.step(step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not any(name.endswith((".tar", ".tmp")) for name in names(mixture.datasets[0].copies))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("data.stage_dir: ")
    ahead.close()


def test_a_second_job_leaves_the_first_one_s_copies_alone(folder, tmp_path, capfd):
    mixture, order, first = staged(folder, tmp_path)
    first.advance(0)
    settle(first)
    _, _, second = staged(folder, tmp_path)
    assert "another job's" in capfd.readouterr().err
    second.advance(10)
    settle(second)
    second.close()
    assert names(mixture.datasets[0].copies) == wanted(mixture, order, 0)
    first.close()


def test_a_lost_original_is_told_by_the_reader_not_by_the_copy(folder, tmp_path):
    data = shutil.copytree(folder, tmp_path / "data")
    mixture, order, ahead = staged(data, tmp_path / "stage")
    lost = data / f"{mixture.datasets[0].shards[order.shards_ahead(0)[0][1]].name}.tar"
    lost.unlink()
    ahead.advance(0)
    settle(ahead)
    with pytest.raises(ValueError, match=f"{lost} is missing"):
        for step in range(3):
            Batches(mixture.datasets, order, 0, 1, 2).step(step)
    ahead.close()


def test_a_stop_does_not_wait_for_the_copies(folder, tmp_path, monkeypatch):
    def slow(self, dataset, shard, copies):
        time.sleep(0.2)

    monkeypatch.setattr(ReadAhead, "_copy", slow)
    _, order, ahead = staged(folder, tmp_path)
    assert len(order.shards_ahead(0)) == 4
    ahead.advance(0)
    ahead.close()
    assert not ahead._locks


def test_without_a_stage_folder_shards_are_read_in_sequence(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(Dataset, "read_ahead", lambda self, shard: asked.append(shard))
    _, order, ahead = staged(folder, None)
    ahead.advance(0)
    ahead.advance(0)
    settle(ahead)
    ahead.close()
    assert asked == [shard for _, shard in order.shards_ahead(0)]


def test_read_ahead_takes_real_files(folder):
    Dataset(folder).read_ahead(3)


def test_the_lock_is_the_process_s(folder, tmp_path):
    mixture, _, ahead = staged(folder, tmp_path)
    lock = mixture.datasets[0].copies / LOCK
    assert hold_lock(lock) is None
    ahead.close()
    assert not lock.exists()
