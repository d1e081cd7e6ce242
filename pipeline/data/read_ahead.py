"""Shards brought near, one after the other, before their samples are read at random.

A window's samples are spread over its shards, so reading them as they come is the slowest thing to
ask of a disk or a parallel file system. One process of each node therefore reads the shards of the
present and the next window from beginning to end: into the system's memory, or, given a folder on
the node's own disk, into copies there. Nobody waits for it: a shard that is not there yet is read
where it lies.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import IO

from pipeline.data.order import GlobalOrder
from pipeline.files import flush_to_disk, hold_lock, temporary_name
from pipeline.shards import Dataset

CHUNK = 2**22  # bytes copied at once; between two of them a stop is noticed
LOCK = ".lock"
STAGED = "locost-" + "?" * 16


def staging_folder(stage_dir: Path, dataset: Dataset) -> Path:
    """Where the copies of a dataset's shards lie."""
    return stage_dir / f"locost-{dataset.fingerprint[:16]}"


class ReadAhead:
    """Follows the steps in a thread of its own; datasets with `copies` have their shards copied.

    A copy gets its name when it is whole. Copies that no window needs any more are removed, at the
    end all of them; those of a killed run are used where they are needed and whole, else removed,
    and so are another dataset's that no run holds. When a copy fails, as on a full disk, one line
    says so and the originals serve.
    """

    def __init__(self, datasets: Sequence[Dataset], order: GlobalOrder) -> None:
        self.datasets, self.order = datasets, order
        self._wanted: list[tuple[int, int]] = []
        self._stop = Event()
        self._warned = False
        self._locks: dict[Path, IO[str]] = {}
        for dataset in datasets:
            if dataset.copies:
                self._claim(dataset.copies)
        for stage_dir in {folder.parent for folder in self._locks}:
            self._sweep(stage_dir)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")

    def advance(self, step: int) -> None:
        """Bring near what global batch `step` and the window after it need."""
        wanted = self.order.shards_ahead(step)
        if set(wanted) != set(self._wanted):
            self._wanted = wanted
            self._thread.submit(self._fetch, wanted)

    def close(self) -> None:
        """Stop, and remove the copies."""
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)
        for folder, lock in self._locks.items():
            with suppress(OSError):  # the disk is the node's own and may be cleared by others
                _remove(folder)
            lock.close()
        self._locks.clear()

    def _fetch(self, wanted: list[tuple[int, int]]) -> None:
        try:
            for folder in self._locks:
                _remove(folder, keep=self._names(folder, wanted))
            for number, shard in wanted:
                if self._stop.is_set() or wanted is not self._wanted:
                    return
                dataset = self.datasets[number]
                if dataset.copies is None:
                    with suppress(OSError):  # told to whoever needs its samples
                        dataset.read_ahead(shard)
                elif dataset.copies in self._locks:
                    self._copy(dataset, shard, dataset.copies)
        except OSError as error:
            self._warn(f"{error}; what is not copied is read where it lies")

    def _names(self, folder: Path, wanted: list[tuple[int, int]]) -> set[str]:
        return {
            self.datasets[number].shards[shard].name
            for number, shard in wanted
            if self.datasets[number].copies == folder
        }

    def _copy(self, dataset: Dataset, shard: int, folder: Path) -> None:
        for suffix in (".npy", ".tar"):
            name = dataset.shards[shard].name + suffix
            original, copy = dataset.path / name, folder / name
            size = original.stat().st_size
            if copy.is_file() and copy.stat().st_size == size:
                continue
            temporary = temporary_name(copy)
            try:
                with original.open("rb") as source, temporary.open("wb") as target:
                    while chunk := source.read(CHUNK):
                        if self._stop.is_set():
                            return
                        target.write(chunk)
                    flush_to_disk(target)
                if temporary.stat().st_size != size:
                    raise OSError(f"{original} changed while it was copied")
                temporary.replace(copy)
            finally:
                temporary.unlink(missing_ok=True)

    def _claim(self, folder: Path) -> None:
        """Become the one process that writes in `folder`, unless another job of this node is."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = hold_lock(folder / LOCK)
        except OSError as error:
            self._warn(f"{error}; shards are read where they lie")
            return
        if lock is None:
            self._warn(f"{folder} is another job's; what it does not copy is read where it lies")
        else:
            self._locks[folder] = lock

    def _sweep(self, stage_dir: Path) -> None:
        """Remove the copies of killed runs on other datasets."""
        for folder in set(stage_dir.glob(STAGED)) - self._locks.keys():
            if (folder / LOCK).is_file() and (lock := hold_lock(folder / LOCK)):
                _remove(folder)
                lock.close()

    def _warn(self, problem: str) -> None:
        if not self._warned:
            print(f"data.stage_dir: {problem}", file=sys.stderr, flush=True)
        self._warned = True


def _remove(folder: Path, keep: frozenset[str] | set[str] = frozenset()) -> None:
    """Remove all but the copies of the shards to keep; with none to keep, the folder too."""
    for path in folder.iterdir():
        if path.name != LOCK and path.stem not in keep:
            path.unlink(missing_ok=True)
    if not keep:
        (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()
