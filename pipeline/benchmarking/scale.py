"""What many files cost: a job over many inputs, a process that trains on many shards.

Counted on files that are made on the spot: small inputs, and many names of a few small shards. Of
an index of billions of documents only the plan is made.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.common.files import file_sha256
from pipeline.common.paths import ROOT
from pipeline.manifest import write_manifest
from pipeline.shards import Sample, write_shard

TOKENIZER = ROOT / "tests" / "fixtures" / "earlier_run" / "dataset" / "tokenizer.model"
LINKS = 30_000  # names of one file; some file systems allow 65,000
SHARD_SAMPLES = 256
KEYS = 15  # of a document: one of its whole text, and MinHash's 14 bands at the default threshold
ROW_BYTES = 70  # of memory for a key in a stage that sorts or compares
RANKS = 2
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

FIRST_BATCH = """
import json, os, sys, time
from pipeline.benchmarking.counted import memory_mb
from pipeline.config import DataConfig
from pipeline.data.batches import Batches
from pipeline.data.mixture import Mixture

before, began = memory_mb("VmRSS"), time.perf_counter()
mixture = Mixture(DataConfig(train=sys.argv[1]))
mixture.datasets[0].check_files()
opened = time.perf_counter() - began
order = mixture.order(256, seed=0)
batches = Batches(mixture.datasets, order, 0, 16, 2, 4096, 910)
batches.step(0)
first = time.perf_counter() - began
for step in range(1, 200):
    batches.step(step)
print(json.dumps({
    "samples": len(mixture), "open_s": opened, "first_batch_s": first,
    "above_imports_mb": memory_mb("VmHWM") - before,
    "files_open": len(os.listdir("/proc/self/fd")),
}))
"""


def measure(shards: int, inputs: int, documents: int) -> dict[str, Any]:
    """The costs of training on so many shards, of a job over so many inputs (run, then run again
    with nothing left to do, each on two ranks), and of an index of so many documents."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "training": {"shards": shards, **training(shards, Path(folder, "many"))},
            "job": {"inputs": inputs, **job(inputs, Path(folder))},
            "index": {"documents": documents, **index(documents, inputs)},
        }


def training(shards: int, folder: Path) -> dict[str, Any]:
    """One process opens a dataset, checks its files, and reads 200 batches of its part."""
    many_shards(shards, folder)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_BATCH, folder],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def many_shards(count: int, folder: Path) -> None:
    """A dataset of `count` shards, which are few files under many names."""
    folder.mkdir()
    shutil.copy(TOKENIZER, folder)
    rng = np.random.default_rng(0)
    samples = [
        (f"{k:05d}", Sample(np.ones(source, np.uint16), np.ones(target, np.uint16)))
        for k, (source, target) in enumerate(rng.integers(8, 512, (SHARD_SAMPLES, 2)))
    ]
    entries = []
    for number in range(count):
        if number % LINKS == 0:
            first = write_shard(folder / f"first-{number}", samples)
        name = f"many-{number:06d}-00000"
        for suffix in (".tar", ".npy"):
            os.link(folder / (first["name"] + suffix), folder / (name + suffix))
        entries.append({**first, "name": name})
    total = count * SHARD_SAMPLES
    tokenizer = {"file": TOKENIZER.name, "sha256": file_sha256(TOKENIZER), "vocab_size": 164}
    write_manifest(
        folder,
        {
            "format_version": 1, "kind": "pretraining", "name": "many", "split": "train",
            "tokenizer": tokenizer, "id_dtype": "uint16", "settings": {}, "shards": entries,
            "counts": {"documents": total, "kept": total, "excluded": {}}, "lengths": {},
        },
    )  # fmt: skip


def job(inputs: int, folder: Path) -> dict[str, Any]:
    """`preprocessing.pretrain --deduplicate` over small files, by rank: what it opened below the
    folder, what it listed, seconds and peak memory; then the same command again."""
    source = folder / "inputs"
    source.mkdir()
    for number in range(inputs):
        text = " ".join(f"The {word} number {number} is here." for word in ("first", "next") * 4)
        record = json.dumps({"text": text, "url": str(number)})
        (source / f"c4-{number:06d}.jsonl").write_text(record + "\n")
    command = [
        "preprocessing.pretrain", "--input", f"{source}/*.jsonl", "--tokenizer", TOKENIZER,
        "--output", folder / "made", "--deduplicate", "--max_unknown_share", "1",
    ]  # fmt: skip
    return {run: counted(command, folder, folder / run) for run in ("first", "again")}


def counted(command: list[Any], folder: Path, results: Path) -> list[dict[str, float]]:
    """A command's counts below `folder`, by rank. Raises RuntimeError with what it says where it
    fails."""
    results.mkdir()
    mpirun = shutil.which("mpirun") or str(Path(sys.executable).with_name("mpirun"))
    words = [mpirun, "--bind-to", "none", "--oversubscribe", "-n", RANKS, sys.executable, "-m"]
    words += ["pipeline.benchmarking.counted", results, folder, *command]
    environment = {**os.environ, **AS_ROOT}
    done = subprocess.run(
        [*map(str, words)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads((results / f"{rank}.json").read_text()) for rank in range(RANKS)]


def index(documents: int, inputs: int) -> dict[str, Any]:
    """How the keys of so many documents are sorted: memory, disk and files of the plan."""
    from preprocessing.jobs.duplicates import ROWS, KeyPlan

    plan = KeyPlan.of([KEYS * documents // inputs] * inputs)
    most = max(max(plan.rows), -(-sum(plan.rows) // plan.parts))
    return {
        "keys": sum(plan.rows), "runs": len(plan.runs), "parts": plan.parts,
        "keys_in_memory": most, "of_at_most": max(ROWS, KEYS * documents // inputs),
        "memory_gb": most * ROW_BYTES / 1e9, "disk_gb": 32 * sum(plan.rows) / 1e9,
    }  # fmt: skip


def as_text(found: dict[str, Any]) -> Iterator[str]:
    """The printed lines."""
    it = found["training"]
    yield (
        f"training on {it['shards']:,} shards ({it['samples']:,} samples), one process: open and "
        f"checked in {it['open_s']:.2f} s, first batch after {it['first_batch_s']:.2f} s, "
        f"{it['above_imports_mb']:.0f} MB above the imports, {it['files_open']} files open"
    )
    it = found["job"]
    for run, ranks in (("first", it["first"]), ("again", it["again"])):
        for rank, counts in enumerate(ranks):
            yield (
                f"a job over {it['inputs']:,} inputs, {run} run, rank {rank}: "
                f"{counts['opened']:,} files opened, {counts['listed']:,} folders listed, "
                f"{counts['seconds']:.1f} s, {counts['peak_mb']:.0f} MB"
            )
    it = found["index"]
    yield (
        f"duplicates among {it['documents']:,} documents: {it['keys']:,} keys in {it['runs']:,} "
        f"runs and {it['parts']:,} parts; {it['keys_in_memory']:,} keys in memory at a time "
        f"({it['memory_gb']:.1f} GB), {it['disk_gb']:,.0f} GB of working files"
    )
