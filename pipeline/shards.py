"""Samples and shards: with `manifest`, what knows the format of a dataset on disk.

A dataset folder holds `manifest.json`, `tokenizer.model` and shards. A shard is a WebDataset tar
of one member `<key>.mp` a sample (msgpack: `source` and `target` as little-endian ids, then the
metadata) and a `.npy` next to it, an uncompressed array of INDEX rows with the offset and size of
each payload, so that any sample is one read. Everything is written under a temporary name and
renamed; the manifest comes last, so a folder with a manifest is complete.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import numpy as np

from pipeline import manifest
from pipeline.common.files import chunks, file_sha256, flush_to_disk, temporary_name
from pipeline.common.stores import is_url, url_of
from pipeline.common.tar_writer import TarWriter
from pipeline.manifest import MANIFEST, REDO, Shard, manifest_fingerprint, read_manifest

OPEN_SHARDS = 16  # shards kept open at once by one process
# One thread at a time parses the header of a .npy file: in Python before 3.11.8 and 3.12.1 `ast`
# counts its recursion for all threads together, and raises SystemError when they mix.
_parsing = threading.Lock()
INDEX = np.dtype(
    [("offset", "<u8"), ("size", "<u4"), ("source_length", "<u4"), ("target_length", "<u4")]
)
ID_DTYPES = {name: np.dtype(code) for name, code in manifest.ID_DTYPES.items()}
Opened = TypeVar("Opened")
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""As `map`: results in the order of the arguments."""


class DamagedData(ValueError):
    """A file of a dataset is missing, cut short, or not what its manifest or index says."""


@dataclass(frozen=True)
class Sample:
    """One (source, target) pair: 1-D arrays of ids, each ending in EOS.

    Metadata of a pre-training sample: url, target_sentence_ends (exclusive, in target positions),
    gap_sentences. Of a summarisation sample: id, target_sentence_ends, references (the untruncated
    summaries, one sentence a line), source_text.
    """

    source: np.ndarray
    target: np.ndarray
    metadata: dict[str, Any] = field(default_factory=dict)


def encode_sample(sample: Sample, id_dtype: str = "uint16") -> bytes:
    """The msgpack payload of a sample. Raises ValueError if an id does not fit `id_dtype`."""
    dtype = ID_DTYPES[id_dtype]
    ids = {}
    for name, values in (("source", sample.source), ("target", sample.target)):
        fits = values.dtype == dtype or (
            len(values) == 0 or 0 <= int(values.min()) <= int(values.max()) <= np.iinfo(dtype).max
        )
        if not fits:
            raise ValueError(f"an id of the {name} does not fit {id_dtype}")
        ids[name] = values.astype(dtype, copy=False).tobytes()
    return msgpack.packb({**ids, **sample.metadata})


def decode_sample(payload: bytes, id_dtype: str = "uint16") -> Sample:
    """The sample of a msgpack payload; its arrays are read-only views."""
    record = msgpack.unpackb(payload)
    dtype = ID_DTYPES[id_dtype]
    return Sample(
        np.frombuffer(record.pop("source"), dtype),
        np.frombuffer(record.pop("target"), dtype),
        record,
    )


def id_dtype_for(vocab_size: int) -> str:
    """The narrowest id type that holds a vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_shard(
    path: str | Path, samples: Iterable[tuple[str, Sample]], id_dtype: str = "uint16"
) -> dict[str, Any]:
    """Write `<path>.tar` and `<path>.npy` from (key, sample) pairs, possibly none.

    The bytes depend only on the samples. Returns the shard's manifest entry. Raises ValueError on
    a key with a dot or a slash, which WebDataset would split.
    """
    tar = Path(f"{path}.tar")
    index = Path(f"{path}.npy")
    temporary_tar, temporary_index = temporary_name(tar), temporary_name(index)
    rows = []
    try:
        with temporary_tar.open("wb") as file:
            with TarWriter(file) as writer:
                for key, sample in samples:
                    if "." in key or "/" in key:
                        raise ValueError(f"sample key {key!r} contains a dot or a slash")
                    payload = encode_sample(sample, id_dtype)
                    offset = writer.add(f"{key}.mp", payload)
                    rows.append((offset, len(payload), len(sample.source), len(sample.target)))
            flush_to_disk(file)
        with temporary_index.open("wb") as file:
            np.save(file, np.array(rows, INDEX))
            flush_to_disk(file)
        entry = {
            "name": tar.stem,
            "samples": len(rows),
            "bytes": temporary_tar.stat().st_size,
            "sha256": file_sha256(temporary_tar),
        }
        temporary_index.replace(index)
        temporary_tar.replace(tar)
    finally:
        temporary_tar.unlink(missing_ok=True)
        temporary_index.unlink(missing_ok=True)
    return entry


class ShardFile:
    """A file open for reading at any offset, closed when garbage collected.

    Read rather than memory-mapped: pages do not count as this process's memory, and a file that is
    truncated meanwhile raises an error instead of a fatal signal.
    """

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`. Raises ValueError if the file ends before."""
        content = os.pread(self.descriptor, size, offset)
        if len(content) != size:
            raise ValueError(f"{len(content)} of {size} bytes there")
        return content


class Dataset:
    """A complete dataset folder with random access; shards are opened on first use.

    Of a dataset to which files were added, `version` is the fingerprint of the version to read;
    where it is not kept, and by default, that is the newest.

    Raises ValueError if the folder is missing or incomplete, has another format or another
    tokenizer than its ids were made with, or (on first read) a shard is missing or truncated.
    Shards that are complete in the folder `copies` are read from there.
    """

    def __init__(self, path: str | Path, version: str | None = None) -> None:
        if is_url(path):
            raise ValueError(
                f"{url_of(path)} is on a store: only training reads shards from there, with "
                "--data.stage_dir DIR; copy the folder to a local one"
            )
        self.path = Path(path)
        self.copies: Path | None = None
        manifest_path = self.path / MANIFEST
        if not self.path.is_dir():
            raise ValueError(
                f"no dataset folder {self.path}; `python -m preprocessing.pretrain` or "
                "`python -m preprocessing.finetune` makes one (--output)"
            )
        if not manifest_path.is_file() and not (self.path / ".items").is_dir():
            raise ValueError(f"{self.path} is not a dataset folder: it has no {MANIFEST}")
        if not manifest_path.is_file():
            raise ValueError(
                f"{self.path} is incomplete: it has no {MANIFEST}; run the command that was "
                "filling it (`python -m preprocessing.pretrain` or `.finetune` with "
                f"--output {self.path}) again, it does only what is missing"
            )
        self.manifest = read_manifest(self.path, version)
        self.shards = [Shard(**shard) for shard in self.manifest["shards"]]
        self.id_dtype: str = self.manifest["id_dtype"]
        self.tokenizer_path = self.path / self.manifest["tokenizer"]["file"]
        self._check_tokenizer()
        self.fingerprint = manifest_fingerprint(self.manifest)
        self._ends = np.cumsum([shard.samples for shard in self.shards], dtype=np.int64)
        # Evicted files are closed when no longer referenced.
        self._tar = lru_cache(OPEN_SHARDS)(self._open_tar)
        self._index = lru_cache(OPEN_SHARDS)(self._open_index)

    def __reduce__(self) -> tuple[type["Dataset"], tuple[Path, str]]:
        return Dataset, (self.path, self.fingerprint)  # every process opens its own files

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.shards else 0

    def __getitem__(self, i: int) -> Sample:
        shard, row = self.locate(i)
        entry = self.index(shard)[row]
        return self.read(shard, int(entry["offset"]), int(entry["size"]))

    def locate(self, i: int) -> tuple[int, int]:
        """(shard, row in it) of sample i, counted over all shards in the order of the manifest."""
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)} in {self.path}")
        shard = int(np.searchsorted(self._ends, i, side="right"))
        return shard, i - int(self._ends[shard]) + self.shards[shard].samples

    def rows(self, samples: np.ndarray, each: Each = map) -> tuple[np.ndarray, np.ndarray]:
        """The shard (N,) and the INDEX row (N,) of each of N samples, numbered as in `locate`.

        `each` opens the shards' indices: one after another, or several at once.
        """
        if len(samples) and not 0 <= samples.min() <= samples.max() < len(self):
            raise IndexError(f"samples {samples.min()} to {samples.max()} of {len(self)}")
        shards = np.searchsorted(self._ends, samples, side="right")
        rows = np.empty(len(samples), INDEX)
        numbers = np.unique(shards).tolist()
        for shard, index in zip(numbers, each(self.index, numbers), strict=True):
            chosen = shards == shard
            start = self._ends[shard] - self.shards[shard].samples
            rows[chosen] = index[samples[chosen] - start]
        return shards, rows

    def index(self, shard: int) -> np.ndarray:
        """INDEX rows of one shard (offset and size in bytes, lengths in ids), memory-mapped."""
        return self._opened(self._index, shard, ".npy")

    def read(self, shard: int, offset: int, size: int) -> Sample:
        """The sample whose payload is `size` bytes at `offset` of a shard's tar."""
        tar = self._opened(self._tar, shard, ".tar")
        try:
            return decode_sample(tar.read(offset, size), self.id_dtype)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedData(
                f"{self.path / self.shards[shard].name}.tar is damaged at byte {offset}: {error!r}"
            ) from None

    def check_files(self) -> None:
        """Check all shards' files, from one listing of the folder.

        Raises ValueError for the first missing or truncated one.
        """
        with os.scandir(self.path) as listed:
            found = {entry.name: entry for entry in listed}
        for shard in self.shards:
            for suffix in (".tar", ".npy"):
                if shard.name + suffix not in found:
                    raise self._missing(self.path / (shard.name + suffix))
            self._check_size(found[shard.name + ".tar"].stat().st_size, self.path, shard)

    def _opened(self, open_in: Callable[[Path, int], Opened], shard: int, suffix: str) -> Opened:
        """The shard's copy if there is a complete one, else the original."""
        if self.copies and (self.copies / (self.shards[shard].name + suffix)).exists():
            with suppress(ValueError, OSError):  # removed or truncated: use the original
                return open_in(self.copies, shard)
        return open_in(self.path, shard)

    def _whole_tar(self, folder: Path, shard: int) -> Path:
        path = self._shard_file(folder, shard, ".tar")
        self._check_size(path.stat().st_size, folder, self.shards[shard])
        return path

    @staticmethod
    def _check_size(size: int, folder: Path, shard: Shard) -> None:
        if size != shard.bytes:
            raise DamagedData(
                f"{folder / shard.name}.tar has {size} bytes, its manifest says {shard.bytes}; "
                f"{REDO}"
            )

    def _open_tar(self, folder: Path, shard: int) -> ShardFile:
        return ShardFile(self._whole_tar(folder, shard))

    def _open_index(self, folder: Path, shard: int) -> np.ndarray:
        path = self._shard_file(folder, shard, ".npy")
        for _ in chunks(path):  # into the page cache: a page fault waits for one page at a time
            pass
        try:
            with _parsing:
                rows = np.load(path, mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise DamagedData(f"{path} is damaged ({error}); {REDO}") from None
        expected = self.shards[shard].samples
        if rows.dtype != INDEX or rows.shape != (expected,):
            raise DamagedData(
                f"{path} does not hold the {expected} rows that its manifest names; {REDO}"
            )
        return rows.view(np.ndarray)

    def _shard_file(self, folder: Path, shard: int, suffix: str) -> Path:
        path = folder / (self.shards[shard].name + suffix)
        if not path.is_file():
            raise self._missing(path)
        return path

    @staticmethod
    def _missing(path: Path) -> DamagedData:
        return DamagedData(f"{path} is missing although its manifest names it; {REDO}")

    def _check_tokenizer(self) -> None:
        if not self.tokenizer_path.is_file():
            raise ValueError(f"{self.tokenizer_path} is missing; {REDO}")
        found = file_sha256(self.tokenizer_path)
        expected = self.manifest["tokenizer"]["sha256"]
        if found != expected:
            raise ValueError(
                f"{self.tokenizer_path} has sha256 {found}, the shards were made with {expected}; "
                "restore that tokenizer or preprocess again"
            )
