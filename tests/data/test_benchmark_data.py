"""`benchmark.py data`, and what it finds on real C4: full micro-batches, even loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import benchmark

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "../shared/data"


@pytest.mark.slow
def test_micro_batches_of_real_c4_are_full_and_even(tmp_path):
    """Amendment 1 of the design: batch 256, 16 ranks, accumulation 2."""
    if not (SHARED / "c4").is_dir():
        pytest.skip("no shared folder with a sample of C4 beside the repository")
    command = [sys.executable, ROOT / "preprocessing/pretrain.py", "--output", tmp_path / "shards"]
    command += ["--input", SHARED / "c4/*.json.gz"]
    command += ["--tokenizer", SHARED / "tokenizers/t5_spiece.model"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    arguments = ["data", "--data", str(tmp_path / "shards"), "--output", str(tmp_path)]
    assert benchmark.main([*arguments, "--steps", "20"]) == 0
    found = json.loads((tmp_path / "data.json").read_text())
    assert (found["batch_size"], found["ranks"], found["accumulation"]) == (256, 16, 2)
    assert found["samples"] > 500
    assert found["source_fill"] >= 0.94
    assert found["load"] >= 0.85
    assert found["target_fill"] >= 0.6


def test_the_figures_are_printed_and_kept(dataset_folder, tmp_path, capsys):
    arguments = ["data", "--data", str(dataset_folder), "--output", str(tmp_path)]
    arguments += ["--batch_size", "12", "--ranks", "2", "--accumulation", "3", "--steps", "4"]
    assert benchmark.main(arguments) == 0
    found = json.loads((tmp_path / "data.json").read_text())
    assert found["command"] == "data" and found["samples"] == 26
    assert found["samples_per_s"] > 0
    assert all(0 < found[name] <= 1 for name in ("source_fill", "target_fill", "load"))
    text = capsys.readouterr().out
    assert "26 samples; batches of 12 for 2 ranks x 3 micro-batches" in text
    assert f"{found['source_fill']:.1%} of source positions" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch_size", "3", "--ranks", "2"], "--batch_size 3 is less than 2 ranks x 2"),
        (["--data", "nowhere"], "no dataset folder nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, message, dataset_folder, capsys):
    assert benchmark.main(["data", "--data", str(dataset_folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
