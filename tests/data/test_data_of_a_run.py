"""train.py over mixed and staged data, and over data that is no longer what it was."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.launch import host_name
from pipeline.shards import Dataset

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "--model.d_model 8 --model.d_ff 16 --model.state_dim 4 --model.encoder_layers 1 "
    "--model.decoder_layers 1 --model.num_heads 1 --model.head_dim 8 --train.batch_size 8 "
    "--train.accumulation 2 --train.precision fp32 --train.warmup_steps 2"
).split()


def start(output: Path, data: Path, *more: str, steps: int = 3) -> subprocess.Popen:
    """A run in one process."""
    command = [sys.executable, str(ROOT / "pipeline" / "train.py"), *SMALL]
    command += ["--data.train", str(data), "--output", str(output)]
    command += ["--train.max_steps", str(steps), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def train(output: Path, data: Path, *more: str, steps: int = 3) -> tuple[int, str]:
    """(exit status, everything printed) of such a run."""
    process = start(output, data, *more, steps=steps)
    text, _ = process.communicate(timeout=240)
    return process.returncode, text


def losses(output: Path) -> list[float]:
    if not (output / "metrics.jsonl").exists():
        return []
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def test_staging_changes_nothing_and_another_mixture_or_dataset_is_refused(
    dataset_folder, validation_folder, tmp_path
):
    data = tmp_path / "data"
    shutil.copytree(dataset_folder, data)
    mixed = ("--data.mixture", f"{{{validation_folder}: 0.5}}")
    stage = tmp_path / "stage"
    status, text = train(tmp_path / "plain", data, *mixed)
    assert status == 0, text
    status, text = train(tmp_path / "staged", data, *mixed, "--data.stage_dir", str(stage))
    assert status == 0, text
    assert losses(tmp_path / "plain") == losses(tmp_path / "staged")
    assert len(losses(tmp_path / "plain")) == 3
    assert [*stage.iterdir()] == []  # the copies went with the run

    status, text = train(tmp_path / "plain", data, steps=4)
    assert status == 2 and "holds a different run" in text and "Traceback" not in text
    assert f"0.5 x {Dataset(validation_folder).fingerprint}" in text
    before = Dataset(data).fingerprint
    shutil.rmtree(data)
    shutil.copytree(validation_folder, data)
    status, text = train(tmp_path / "plain", data, steps=4)
    assert status == 2 and before in text and Dataset(data).fingerprint in text


def test_data_lost_during_a_run_ends_it_in_one_line(dataset_folder, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(dataset_folder, data)
    process = start(tmp_path / "run", data, steps=1_000_000)
    while not losses(tmp_path / "run") and process.poll() is None:
        time.sleep(0.1)
    cut = data / "tiny-00002-00000.tar"
    os.truncate(cut, 700)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    assert "Traceback" not in text
    assert f"error: rank 0 on {host_name()}: {cut} is damaged at byte " in text
