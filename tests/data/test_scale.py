"""Large datasets and jobs of many files: what they cost a process, counted."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from large_dataset import many_names

from pipeline.benchmarking import scale
from pipeline.shards import INDEX, Sample, write_shard
from pipeline.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
SHARDS, SAMPLES = 1024, 296_875
MEMORY = 200e6  # bytes a rank may spend

# Steps from the first to the third window, enough to meet every page of an index.
RANK = """
import json, sys, time
from pathlib import Path
from pipeline.config import DataConfig
from pipeline.data.batches import Batches
from pipeline.data.mixture import Mixture

def status(name):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if name in l)
    return 1024 * int(line.split()[1])

Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
before, began = status("VmRSS"), time.perf_counter()
mixture = Mixture(DataConfig(train=sys.argv[1]))
mixture.datasets[0].check_files()
order = mixture.order(256, seed=0)
batches = Batches(mixture.datasets, order, 3, 16, 2, 4096, 910)
batches.step(0)
opened = time.perf_counter() - began
cpu, steps = time.process_time(), range(0, 50_000, 125)
for step in steps:
    batches.step(step)
cpu = time.process_time() - cpu
for step in range(64):
    batches.step(step + 50_000)
print(json.dumps({
    "samples": len(mixture), "opened_s": opened, "rss": status("VmRSS") - before,
    "peak": status("VmHWM") - before, "ms_per_step": 1e3 * cpu / len(steps),
}))
"""


def giant(folder: Path, tokenizer_path: Path) -> Path:
    """The dataset, whose shards are all one file under many names."""
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(tokenizer_path.read_bytes())
    rng = np.random.default_rng(0)
    samples = [
        (f"{k:05d}", Sample(np.ones(source, np.uint16), np.ones(target, np.uint16)))
        for k, (source, target) in enumerate(rng.integers(8, 512, (64, 2)))
    ]
    entry = write_shard(folder / "first", samples)
    rows = np.resize(np.load(folder / "first.npy"), SAMPLES)
    assert rows.dtype == INDEX
    np.save(folder / "first.npy", rows)
    entry["samples"] = SAMPLES
    return many_names(folder, entry, SHARDS, Tokenizer(tokenizer_path).vocab_size)


@pytest.mark.slow
def test_a_dataset_of_304_million_samples_fits(tokenizer_path, tmp_path, capsys):
    folder = giant(tmp_path / "giant", tokenizer_path)
    command = [sys.executable, "-c", RANK, str(folder)]
    run = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    with capsys.disabled():
        print(f"\n304M samples: {found}")
    assert found["samples"] == SHARDS * SAMPLES == 304_000_000
    assert found["peak"] <= MEMORY


@pytest.mark.slow
def test_a_dataset_of_100_000_shards_is_opened_from_one_listing(tmp_path, capsys):
    found = scale.training(100_000, tmp_path / "many")
    with capsys.disabled():
        print(f"\n100,000 shards: {found}")
    assert found["samples"] == 100_000 * scale.SHARD_SAMPLES
    assert found["above_imports_mb"] < 500
    assert found["files_open"] < 100


@pytest.mark.slow
def test_the_costs_of_a_job_grow_linearly_with_its_inputs(tmp_path):
    counts = []
    for inputs in (40, 80):
        (tmp_path / str(inputs)).mkdir()
        counts.append(scale.job(inputs, tmp_path / str(inputs)))
    few, many = counts
    for run in ("first", "again"):
        opened = [sum(rank["opened"] for rank in found[run]) for found in counts]
        assert opened[1] <= 2 * opened[0] < 2 * 40 * 40  # a stage opens an item's files once
        listed = [sum(rank["listed"] for rank in found[run]) for found in counts]
        assert listed[0] == listed[1] < 40
    for found in counts:  # rank 0 looks at the inputs for all
        assert found["again"][1]["opened"] == found["again"][1]["listed"] == 0
    assert many["again"][0]["opened"] - few["again"][0]["opened"] == 40 * 4


def test_an_index_of_3_billion_documents_is_sorted_in_bounded_memory():
    found = scale.index(3_000_000_000, 12_000)
    assert found["keys_in_memory"] <= 2 * found["of_at_most"]
    assert found["memory_gb"] < 2.5
    assert scale.index(30_000_000_000, 120_000)["keys_in_memory"] == found["keys_in_memory"]
