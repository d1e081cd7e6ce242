"""Datasets of the size of a real one, made in seconds: one shard under many names.

    python tests/data/large_dataset.py FOLDER    32 shards of 237 MB, lengths as in C4

The shards are hard links, 240 MB in all. A mount of the folder (`benchmark.py data --latency_ms`)
takes them for different files.
"""

import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipeline.manifest import write_manifest
from pipeline.shards import Sample, file_sha256, write_shard

SHARDS, SAMPLES = 32, 120_000


def lengths_of(rng: np.random.Generator, count: int) -> np.ndarray:
    """Source and target lengths as those of 618 documents of C4: log-normal, of one growth."""
    sources = rng.lognormal(5.61, 0.89, count)
    targets = sources * rng.lognormal(-0.96, 0.40, count)
    lengths = [np.clip(sources, 8, 4096), np.clip(targets, 4, 910)]
    return np.stack(lengths, axis=1).astype(np.int64)


def c4_sized(folder: Path, shards: int = SHARDS, samples: int = SAMPLES) -> Path:
    """A dataset of random ids, `samples` samples a shard, whose tokenizer is no tokenizer."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.model").write_bytes(b"none")
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 32_000, 2**20).astype(np.uint16)

    def sample(source: int, target: int) -> Sample:
        start = int(rng.integers(0, len(ids) - source - target))
        parts = np.split(ids[start : start + source + target], [source])
        return Sample(*parts, {"url": "https://example.org/" + "x" * 40})

    pairs = lengths_of(rng, samples).tolist()
    numbered = ((f"{k:06d}", sample(*pair)) for k, pair in enumerate(pairs))
    return many_names(folder, write_shard(folder / "first", numbered), shards)


def many_names(folder: Path, entry: dict, shards: int, vocab_size: int = 32_000) -> Path:
    """Complete a folder with a tokenizer and the shard of a manifest's `entry`, `shards` times."""
    entries = []
    for number in range(shards):
        name = f"large-{number:05d}-00000"
        for suffix in (".tar", ".npy"):
            os.link(folder / (entry["name"] + suffix), folder / (name + suffix))
        entries.append({**entry, "name": name})
    total = shards * entry["samples"]
    tokenizer = {"file": "tokenizer.model", "sha256": file_sha256(folder / "tokenizer.model")}
    write_manifest(
        folder,
        {
            "format_version": 1, "kind": "pretraining", "name": "large", "split": "train",
            "tokenizer": {**tokenizer, "vocab_size": vocab_size},
            "id_dtype": "uint16", "settings": {}, "shards": entries,
            "counts": {"documents": total, "kept": total, "excluded": {}}, "lengths": {},
        },
    )  # fmt: skip
    return folder


if __name__ == "__main__":
    c4_sized(Path(sys.argv[1]))
