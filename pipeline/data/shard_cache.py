"""Shards read ahead sequentially, before their samples are read at random.

The samples of a window are spread over its shards: random reads, the slowest access pattern of a
disk or a parallel file system. One process of each node therefore reads the shards of the current
and the next window from beginning to end: into the page cache, or, given a folder on a local disk,
into copies there. Nothing waits for it: a shard that is not copied yet is read from the original,
except on a store, where a reader makes the copy itself or waits for the process that makes it.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import IO, NamedTuple

from pipeline.common.files import chunks, flush_to_disk, hold_lock, temporary_name
from pipeline.data.order import GlobalOrder
from pipeline.data.stored_dataset import INDEX, LOCK, TAR, StoredDataset
from pipeline.shards import DamagedData, Dataset

STREAMS = 8
"""Files that are read at once, each from beginning to end. A network file system that reads ahead
128 KiB, Linux's default, and takes 30 ms for a request delivers about 16 MB/s to one reader."""
STAGED = "locost-" + "?" * 16


class ShardPart(NamedTuple):
    """A shard's index (.npy) or samples (.tar)."""

    dataset: int
    shard: int
    suffix: str

    def path(self, datasets: Sequence[Dataset]) -> Path:
        """The file in its dataset's folder."""
        dataset = datasets[self.dataset]
        return dataset.path / (dataset.shards[self.shard].name + self.suffix)


class ShardCache:
    """Follows the steps in threads of its own; shards of datasets with `copies` are copied.

    A copy gets its name when complete. Copies that no window needs any more are removed, and all of
    them at the end. Copies left by a killed run are reused if needed and complete, else removed, as
    are those of other datasets that no run holds. If a copy fails, as on a full disk, one line says
    so and the originals are read. Copies of `kept` datasets, which are on a store and follow no
    steps, stay to the end.
    """

    def __init__(
        self, datasets: Sequence[Dataset], order: GlobalOrder, kept: Sequence[Dataset] = ()
    ) -> None:
        self.datasets, self.order = datasets, order
        self._wanted: list[tuple[int, int]] = []
        self._resident: set[ShardPart] = set()
        self._stop = Event()
        self._warned = False
        self._locks: dict[Path, IO[str]] = {}
        for dataset in (*datasets, *kept):
            if dataset.copies:
                self._claim(dataset.copies)
        for stage_dir in {folder.parent for folder in self._locks}:
            self._sweep(stage_dir)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._streams = ThreadPoolExecutor(STREAMS, thread_name_prefix="read-ahead-stream")

    def advance(self, step: int) -> None:
        """Fetch the shards of global batch `step` and of the window after it."""
        wanted = self.order.shards_ahead(step)
        if set(wanted) != set(self._wanted):
            self._wanted = wanted
            self._thread.submit(self._fetch, wanted)

    def close(self) -> None:
        """Stop, and remove the copies."""
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)
        self._streams.shutdown()
        for folder, lock in self._locks.items():
            with suppress(OSError):  # others may have cleared the local disk
                _remove(folder)
            lock.close()
        self._locks.clear()

    def _fetch(self, wanted: list[tuple[int, int]]) -> None:
        """Remove the copies that are not wanted; fetch the files that are, indices first."""
        if wanted is not self._wanted:
            return
        files = [ShardPart(*shard, suffix) for suffix in (INDEX, TAR) for shard in wanted]
        self._resident.intersection_update(files)
        tasks: list[Future[None]] = []
        try:
            for folder in self._locks.keys() & {dataset.copies for dataset in self.datasets}:
                _remove(folder, keep=self._names(folder, wanted))
            for file in files:
                dataset = self.datasets[file.dataset]
                if dataset.copies is None:
                    if file not in self._resident:
                        tasks.append(self._streams.submit(self._read, file))
                elif dataset.copies in self._locks:
                    tasks.append(self._streams.submit(self._copy, file, dataset.copies))
            for task in tasks:
                task.result()
        except (OSError, DamagedData) as error:
            self._warn(f"{error}; shards that are not copied are read from the dataset folder")
        finally:  # the next call removes files that no thread may be writing then
            for task in tasks:
                task.cancel()
            wait(tasks)

    def _names(self, folder: Path, wanted: list[tuple[int, int]]) -> set[str]:
        return {
            self.datasets[number].shards[shard].name
            for number, shard in wanted
            if self.datasets[number].copies == folder
        }

    def _dropped(self, file: ShardPart) -> bool:
        """Whether the run is ending, or its windows have moved past the file."""
        return self._stop.is_set() or (file.dataset, file.shard) not in self._wanted

    def _read(self, file: ShardPart) -> None:
        """Read a file into the page cache."""
        with suppress(OSError):  # raised again when its samples are read
            for _ in chunks(file.path(self.datasets)):
                if self._dropped(file):
                    return
            self._resident.add(file)

    def _copy(self, file: ShardPart, folder: Path) -> None:
        dataset = self.datasets[file.dataset]
        if isinstance(dataset, StoredDataset):
            if not self._dropped(file):
                dataset.fetch(file.shard, file.suffix, lambda: self._dropped(file))
            return
        original = file.path(self.datasets)
        copy = folder / original.name
        size = original.stat().st_size
        if self._dropped(file) or (copy.is_file() and copy.stat().st_size == size):
            return
        temporary = temporary_name(copy)
        try:
            with temporary.open("wb") as target:
                for chunk in chunks(original):
                    if self._dropped(file):
                        return
                    target.write(chunk)
                flush_to_disk(target)
            if temporary.stat().st_size != size:
                raise OSError(f"{original} changed while it was copied")
            temporary.replace(copy)
        finally:
            temporary.unlink(missing_ok=True)

    def _claim(self, folder: Path) -> None:
        """Lock `folder` for writing, unless another job of this node holds it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = hold_lock(folder / LOCK)
        except OSError as error:
            self._warn(f"{error}; shards are read from the dataset folder")
            return
        if lock is None:
            self._warn(
                f"{folder} is in use by another job; shards it lacks are read from the dataset"
            )
        else:
            self._locks[folder] = lock

    def _sweep(self, stage_dir: Path) -> None:
        """Remove copies that killed runs left of other datasets."""
        for folder in set(stage_dir.glob(STAGED)) - self._locks.keys():
            if (folder / LOCK).is_file() and (lock := hold_lock(folder / LOCK)):
                _remove(folder)
                lock.close()

    def _warn(self, problem: str) -> None:
        if not self._warned:
            print(f"data.stage_dir: {problem}", file=sys.stderr, flush=True)
        self._warned = True


def _remove(folder: Path, keep: frozenset[str] | set[str] = frozenset()) -> None:
    """Remove all copies but those of the shards to keep; with none to keep, the folder too."""
    for path in folder.iterdir():
        if path.suffix != LOCK and path.name != LOCK and path.stem not in keep:
            path.unlink(missing_ok=True)
    if not keep:
        for lock in folder.glob(f"*{LOCK}"):
            lock.unlink(missing_ok=True)
        folder.rmdir()
