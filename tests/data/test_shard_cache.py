"""Shards read ahead, and copies on the local disk: the same samples, complete or absent."""

import ctypes
import mmap
import os
import resource
import shutil
import time
from collections import Counter
from pathlib import Path
from threading import Event

import pytest
import torch

from pipeline.common import files
from pipeline.common.files import flush_to_disk, hold_lock
from pipeline.config import DataConfig
from pipeline.data import order as order_module
from pipeline.data import shard_cache
from pipeline.data.batches import Batches
from pipeline.data.mixture import Mixture
from pipeline.data.shard_cache import LOCK, ShardCache
from pipeline.manifest import write_manifest
from pipeline.shards import Dataset, write_shard


@pytest.fixture(autouse=True)
def short_windows(monkeypatch):
    monkeypatch.setattr(order_module, "WINDOW_SHARDS", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, dataset_folder):
    """The tiny dataset's samples in eight shards: four windows."""
    source, data = Dataset(dataset_folder), tmp_path_factory.mktemp("staged") / "data"
    data.mkdir()
    shutil.copy(source.tokenizer_path, data)
    entries = [
        write_shard(
            data / f"tiny-{k:05d}-00000", [(f"{i:05d}", source[i]) for i in range(k, 26, 8)]
        )
        for k in range(8)
    ]
    write_manifest(data, {**source.manifest, "shards": entries})
    return data


def staged(folder, stage):
    """The datasets, their order in batches of 4, and their shard cache."""
    mixture = Mixture(DataConfig(train=str(folder), stage_dir=str(stage) if stage else None))
    order = mixture.order(4, seed=2)
    return mixture, order, ShardCache(mixture.datasets, order)


def settle(ahead: ShardCache) -> None:
    """Wait until all requests are done."""
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


def test_copies_are_read(folder, tmp_path):
    data = shutil.copytree(folder, tmp_path / "data")
    mixture, order, ahead = staged(data, tmp_path / "stage")
    ahead.advance(0)
    settle(ahead)
    for original in data.glob("tiny-*"):
        original.unlink()
    plain = Batches([Dataset(folder)], order, 0, 1, 2)
    assert same(Batches(mixture.datasets, order, 0, 1, 2).step(0), plain.step(0))
    ahead.close()


def test_originals_are_read_until_the_copy_is_complete(folder, tmp_path):
    mixture, order, ahead = staged(folder, tmp_path)
    plain = Batches([Dataset(folder)], order, 0, 1, 2)
    assert same(Batches(mixture.datasets, order, 0, 1, 2).step(0), plain.step(0))
    ahead.close()


def test_copies_of_a_killed_run_are_reused_if_complete_else_removed(folder, tmp_path):
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


def test_a_truncated_copy_is_not_read(folder, tmp_path):
    mixture, order, ahead = staged(folder, tmp_path)
    ahead.advance(0)
    settle(ahead)
    for copy in mixture.datasets[0].copies.iterdir():
        if copy.name != LOCK:
            copy.write_bytes(copy.read_bytes()[:100])
    plain = Batches([Dataset(folder)], order, 0, 1, 2)
    assert same(Batches(mixture.datasets, order, 0, 1, 2).step(0), plain.step(0))
    ahead.close()


def test_a_full_disk_is_reported_once_and_the_originals_are_read(folder, tmp_path, capfd):
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


def test_a_second_job_does_not_touch_the_copies_of_the_first(folder, tmp_path, capfd):
    mixture, order, first = staged(folder, tmp_path)
    first.advance(0)
    settle(first)
    _, _, second = staged(folder, tmp_path)
    assert "in use by another job" in capfd.readouterr().err
    second.advance(10)
    settle(second)
    second.close()
    assert names(mixture.datasets[0].copies) == wanted(mixture, order, 0)
    first.close()


def test_a_lost_original_is_reported_by_the_reader_not_the_copy(folder, tmp_path):
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


class Pieces:
    """The pieces that are read of each file, by name; `before` is called with every one."""

    def __init__(self, monkeypatch, before=lambda: None):
        self.read: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.before = before
        monkeypatch.setattr(files, "CHUNK", PIECE)
        monkeypatch.setattr(shard_cache, "chunks", self.chunks)

    def chunks(self, path):
        for chunk in files.chunks(path):
            self.read[path.name] += 1
            self.bytes[path.name] += len(chunk)
            self.before()
            yield chunk


PIECE = 512


def sizes(folder, names) -> Counter[str]:
    return Counter({name: (folder / name).stat().st_size for name in names})


def test_every_byte_of_both_windows_is_read_once_and_no_other(folder, monkeypatch):
    pieces, expected, before = Pieces(monkeypatch), Counter(), set()
    mixture, order, ahead = staged(folder, None)
    for step in range(24):
        ahead.advance(step)
        settle(ahead)
        now = wanted(mixture, order, step)
        expected += sizes(folder, now - before)
        before = now
        assert pieces.bytes == expected
    ahead.close()
    assert max(pieces.read.values()) > 8


@pytest.mark.parametrize("copied", [False, True])
def test_files_that_the_windows_have_passed_are_left_where_they_are(
    folder, tmp_path, monkeypatch, copied
):
    moved = Event()
    pieces = Pieces(monkeypatch, lambda: moved.wait(30))
    mixture, order, ahead = staged(folder, tmp_path if copied else None)
    first = wanted(mixture, order, 0)
    later, second = next(
        (step, found)
        for step in range(24)
        if first - (found := wanted(mixture, order, step)) and first & found
    )
    ahead.advance(0)
    while len(pieces.read) < len(first):  # each file's first piece is being read
        time.sleep(0.01)
    ahead.advance(later)
    moved.set()
    settle(ahead)
    assert {pieces.read[name] for name in first - second} == {1}
    assert {name: pieces.bytes[name] for name in second} == sizes(folder, second)
    if copied:
        assert names(mixture.datasets[0].copies) == second
    ahead.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_stop_takes_effect_after_a_piece(folder, tmp_path, monkeypatch, copied):
    pieces = Pieces(monkeypatch, lambda: ahead._stop.wait(30))
    _, order, ahead = staged(folder, tmp_path if copied else None)
    ahead.advance(0)
    while len(pieces.read) < 2 * len(order.shards_ahead(0)):  # so many at once, too
        time.sleep(0.01)
    ahead.close()
    assert set(pieces.read.values()) == {1}
    assert len(pieces.read) == shard_cache.STREAMS
    assert [*tmp_path.iterdir()] == []


def resident(path: Path) -> tuple[int, int]:
    """Pages of a file in the page cache, and all its pages."""
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # the address of a writable
    pages = (ctypes.c_ubyte * -(-len(content) // mmap.PAGESIZE))()
    start = ctypes.c_char.from_buffer(content)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.byref(start), ctypes.c_size_t(len(content)), pages) == 0
    return sum(page & 1 for page in pages), len(pages)


def test_files_read_ahead_lie_in_the_page_cache(folder, tmp_path):
    """Files larger than what the system reads ahead by itself, at most 8 MiB on most machines."""
    data = shutil.copytree(folder, tmp_path / "data")
    for path in data.glob("*.tar"):
        os.truncate(path, 2**25)
    for path in data.iterdir():
        with path.open("r+b") as file:
            flush_to_disk(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if kept := [path.name for path in data.glob("*.tar") if resident(path)[0]]:
        pytest.skip(f"this file system keeps {kept[0]} in the page cache whatever it is told")
    mixture, order, ahead = staged(data, None)
    ahead.advance(0)
    settle(ahead)
    read = wanted(mixture, order, 0)
    for path in data.glob("*.tar"):
        found, pages = resident(path)
        assert found == (pages if path.name in read else 0), path
    ahead.close()


def test_the_lock_belongs_to_the_process(folder, tmp_path):
    mixture, _, ahead = staged(folder, tmp_path)
    lock = mixture.datasets[0].copies / LOCK
    assert hold_lock(lock) is None
    ahead.close()
    assert not lock.exists()
