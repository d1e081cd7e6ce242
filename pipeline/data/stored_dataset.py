"""Datasets on a store: shards are copied whole to a local disk before their samples are read.

A sample of a few KB would otherwise be a request of its own. Of the processes of a node, one copies
a shard, the others wait for it; the manifest and the tokenizer are read when the dataset is opened.
"""

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.common.files import flush_to_disk, replace_bytes
from pipeline.common.stores import StorePath, is_url, sizes, store_path
from pipeline.manifest import MANIFEST, manifest_fingerprint, read_manifest, write_manifest
from pipeline.shards import DamagedData, Dataset, Opened

CHUNK = 2**23  # bytes that are hashed and written at once
ATTEMPTS = 3  # to open a copy that the windows of another process may remove
LOCK = ".lock"
TAR, INDEX = ".tar", ".npy"


def staging_folder(stage_dir: Path, dataset: Dataset) -> Path:
    """The folder of the copies of a dataset's shards."""
    return stage_dir / f"locost-{dataset.fingerprint[:16]}"


def open_dataset(path: str, stage_dir: str | None, version: str | None = None) -> Dataset:
    """The dataset of a folder or a URL, in a version as Dataset takes it. Raises ValueError as
    Dataset does, and where a URL has no `stage_dir`."""
    if not is_url(path):
        return Dataset(path, version)
    url = store_path(path)
    if stage_dir is None:
        raise ValueError(
            f"{url} is on a store: give --data.stage_dir DIR, a folder on each node's local disk "
            "to copy shards to, or copy the dataset to a local folder"
        )
    return StoredDataset(url, Path(stage_dir), version)


class StoredDataset(Dataset):
    """A dataset folder on a store, read through copies in `stage_dir`.

    Raises ValueError as Dataset does, OSError where the store cannot be reached; DamagedData where
    a shard is not what its manifest says.
    """

    copies: Path

    def __init__(self, url: StorePath, stage_dir: Path, version: str | None = None) -> None:
        super().__init__(_description(url, stage_dir, version))
        self.path = url  # type: ignore[assignment]  # for messages: files are in `copies`
        self._url, self._stage_dir = url, stage_dir
        self.copies = staging_folder(stage_dir, self)

    def __reduce__(self) -> tuple[type[Dataset], tuple[Any, ...]]:
        return StoredDataset, (self._url, self._stage_dir, self.fingerprint)

    def check_files(self) -> None:
        """As Dataset's, from one listing. Raises OSError where there is none."""
        found = sizes(self._url)
        for shard in self.shards:
            if shard.name + INDEX not in found or found.get(shard.name + TAR) != shard.bytes:
                raise DamagedData(
                    f"{self.path / shard.name}{TAR} or {INDEX} is missing or not as long as the "
                    "manifest says; run the command that made the dataset again"
                )

    def fetch(
        self, shard: int, suffix: str, is_dropped: Callable[[], bool] = lambda: False
    ) -> None:
        """Copy a shard's file unless its copy is complete, or `is_dropped`.

        Raises OSError where the store or the disk fails, DamagedData where the samples do not
        have the manifest's checksum.
        """
        copy = self.copies / (self.shards[shard].name + suffix)
        if self._is_complete(copy, shard):
            return
        self.copies.mkdir(parents=True, exist_ok=True)
        with _locked(copy.with_name(f".{copy.name}{LOCK}")):
            if not self._is_complete(copy, shard):
                self._download(copy, shard, is_dropped)

    def _is_complete(self, copy: Path, shard: int) -> bool:
        with suppress(FileNotFoundError):
            size = copy.stat().st_size
            return copy.suffix == INDEX or size == self.shards[shard].bytes
        return False

    def _download(self, copy: Path, shard: int, is_dropped: Callable[[], bool]) -> None:
        digest = hashlib.sha256()
        temporary = copy.with_name(f".{copy.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
        try:
            with (self._url / copy.name).open("rb", 0) as source, temporary.open("wb") as target:
                while chunk := source.read(CHUNK):
                    if is_dropped():
                        return
                    digest.update(chunk)
                    target.write(chunk)
                flush_to_disk(target)
            if copy.suffix == TAR and digest.hexdigest() != self.shards[shard].sha256:
                raise DamagedData(
                    f"{self.path / copy.name} has sha256 {digest.hexdigest()}, its manifest says "
                    f"{self.shards[shard].sha256}; run the command that made the dataset again"
                )
            temporary.replace(copy)
        finally:
            temporary.unlink(missing_ok=True)

    def _opened(self, open_in: Callable[[Path, int], Opened], shard: int, suffix: str) -> Opened:
        """The shard's copy, made now if need be."""
        for _ in range(ATTEMPTS):
            with suppress(DamagedData, FileNotFoundError):  # not there, or removed meanwhile
                return open_in(self.copies, shard)
            self.fetch(shard, suffix)
        return open_in(self.copies, shard)


def _description(url: StorePath, stage_dir: Path, version: str | None) -> Path:
    """A local folder with a dataset's manifest and tokenizer, named by its fingerprint."""
    try:
        manifest = read_manifest(url, version)
    except FileNotFoundError as error:
        if error.filename != str(url / MANIFEST):  # its bucket
            raise
        raise ValueError(
            f"{url} is not a complete dataset: it has no {MANIFEST}; `python -m "
            f"preprocessing.pretrain` or `.finetune` makes one (--output {url} --work_dir DIR)"
        ) from None
    folder = stage_dir / f"dataset-{manifest_fingerprint(manifest)[:16]}"
    tokenizer = manifest["tokenizer"]["file"]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / tokenizer).is_file():
        replace_bytes(folder / tokenizer, (url / tokenizer).read_bytes())
    if not (folder / MANIFEST).is_file():
        write_manifest(folder, manifest)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that other threads and processes wait for."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
