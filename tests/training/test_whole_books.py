"""A small model on whole books, each shared by two processes: the losses of one process."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_runs import metrics

from pipeline.distributed.world import free_port

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "../shared/data"
STEPS = 2


def program(*command: object) -> None:
    finished = subprocess.run(
        [*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.slow
def test_the_longest_books_are_trained_on_whole_by_two_processes(tmp_path):
    """Moby Dick and three more from Project Gutenberg, with their gap sentences as targets."""
    books = sorted((SHARED / "books").glob("*.txt"))
    if not books:
        pytest.skip("no books in ../shared/data")
    with gzip.open(tmp_path / "books.json.gz", "wt") as records:
        for book in books:
            record = {"text": book.read_text(encoding="utf-8-sig", errors="replace")}
            records.write(json.dumps({**record, "url": book.name}) + "\n")
    program(
        sys.executable, "preprocessing/pretrain.py", "--input", tmp_path / "books.json.gz",
        "--tokenizer", SHARED / "tokenizers/t5_spiece.model", "--output", tmp_path / "shards",
        "--source_length", 0, "--target_length", 128,
    )  # fmt: skip
    manifest = json.loads((tmp_path / "shards" / "manifest.json").read_text())
    assert manifest["lengths"]["source"]["max"] > 200_000
    deepspeed = Path(sys.executable).with_name("deepspeed")
    launcher = [deepspeed, "-q", "--master_port", free_port(), "--num_accelerators", 2]
    for size, start in ((1, [sys.executable]), (2, launcher)):
        program(
            *start, "pipeline/train.py", "--config", "pipeline/recipes/debug.yaml",
            "--data.train", tmp_path / "shards", "--data.source_length", 0,
            "--data.target_length", 128, "--train.batch_size", 4, "--train.accumulation", 4,
            "--train.recompute_activations", "true", "--train.max_steps", STEPS,
            "--train.startup_check", "false", "--train.picture_every", 0,
            "--train.sequence_parallel_size", size, "--output", tmp_path / f"shared by {size}",
        )  # fmt: skip
    alone, shared = (
        [line for line in metrics(tmp_path / f"shared by {size}") if "loss" in line]
        for size in (1, 2)
    )
    assert len(alone) == len(shared) == STEPS
    for one, other in zip(alone, shared, strict=True):
        for name in ("loss", "gradient_norm"):
            assert other[name] == pytest.approx(one[name], rel=1e-5)
        assert other["source_tokens"] == one["source_tokens"]
