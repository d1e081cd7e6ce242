"""Training on mixed and staged data, and on data that changed."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pipeline.config import parse
from pipeline.distributed.launcher_environment import host_name
from pipeline.distributed.world import World
from pipeline.manifest import keep_version, write_manifest
from pipeline.shards import Dataset, write_shard
from pipeline.training.prepare import prepare

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "--model.d_model 8 --model.d_ff 16 --model.state_dim 4 --model.encoder_layers 1 "
    "--model.decoder_layers 1 --model.num_heads 1 --model.head_dim 8 --train.batch_size 8 "
    "--train.accumulation 2 --train.precision fp32 --train.warmup_steps 2"
).split()


TRAIN_EACH = """
import json, sys
sys.path[0] = sys.argv[1]
from pipeline.config import parse
from pipeline.distributed import world as distributed
from pipeline.training.prepare import prepare
from pipeline.training.trainer import train

world = distributed.start()
for arguments in json.loads(sys.argv[2]):
    config, _ = parse(arguments)
    assert train(config, prepare(config, world), world) == 0
distributed.stop()
"""


def arguments(output: Path, data: Path, *more: str, steps: int = 3) -> list[str]:
    """train.py's, of a run in one process."""
    folders = ["--data.train", str(data), "--output", str(output)]
    return [*SMALL, *folders, "--train.max_steps", str(steps), *more]


def train_each(*runs: list[str]) -> str:
    """Train one after another, in one process; what they print."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_EACH, str(ROOT), json.dumps(runs)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def add_a_shard(folder: Path, source: Path) -> None:
    """A new version of a dataset, with the samples of another, as preprocessing makes one."""
    manifest, other = Dataset(folder).manifest, Dataset(source)
    keep_version(folder)
    samples = [(f"new-{i}", other[i]) for i in range(len(other))]
    manifest["shards"].append(write_shard(folder / "tiny-00009-00000", samples))
    manifest["counts"]["kept"] += len(samples)
    write_manifest(folder, manifest)


def refusal(output: Path, data: Path) -> str:
    """The error of a run that is not started."""
    config, _ = parse(arguments(output, data, steps=4))
    with pytest.raises(ValueError) as caught:
        prepare(config, World(0, 1, 0, torch.device("cpu")))
    return str(caught.value)


def losses(output: Path, name: str = "loss") -> list[float]:
    if not (output / "metrics.jsonl").exists():
        return []
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def test_staging_changes_nothing_and_another_mixture_or_dataset_is_refused(
    dataset_folder, validation_folder, tmp_path
):
    data = tmp_path / "data"
    shutil.copytree(dataset_folder, data)
    mixed = ("--data.mixture", f"{{{validation_folder}: 0.5}}")
    stage = tmp_path / "stage"
    plain, staged = tmp_path / "plain", tmp_path / "staged"
    runs = [
        arguments(plain, data, *mixed),
        arguments(staged, data, *mixed, "--data.stage_dir", str(stage)),
    ]
    train_each(*runs)
    assert losses(plain) == losses(staged)
    assert len(losses(plain)) == 3
    assert [*stage.iterdir()] == []  # the copies are removed with the run

    said = refusal(plain, data)
    assert "holds a different run" in said and "\n" not in said
    assert f"0.5 x {Dataset(validation_folder).fingerprint}" in said
    before = Dataset(data).fingerprint
    shutil.rmtree(data)
    shutil.copytree(validation_folder, data)
    said = refusal(plain, data)
    assert before in said and Dataset(data).fingerprint in said


def test_a_run_keeps_the_version_of_its_data_that_it_began_with(
    dataset_folder, validation_folder, tmp_path
):
    data, held_out = tmp_path / "data", tmp_path / "held-out"
    shutil.copytree(dataset_folder, data)
    shutil.copytree(validation_folder, held_out)
    more = ("--data.validation", str(held_out), "--train.validate_every", "1")
    whole, begun, new = (tmp_path / name for name in ("whole", "begun", "new"))
    train_each(arguments(whole, data, *more, steps=6), arguments(begun, data, *more, steps=3))
    before = Dataset(data).fingerprint
    add_a_shard(data, validation_folder)
    add_a_shard(held_out, dataset_folder)
    train_each(arguments(begun, data, *more, steps=6), arguments(new, data, *more, steps=6))
    assert losses(begun) == losses(whole) != losses(new)
    name = "validation_loss"
    assert losses(begun, name) == losses(whole, name) != losses(new, name)
    marker = json.loads((begun / "last" / "COMPLETE").read_text())
    assert marker["identity"]["dataset"] == before != Dataset(data).fingerprint


def test_data_lost_during_a_run_ends_it_in_one_line(dataset_folder, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(dataset_folder, data)
    words = arguments(tmp_path / "run", data, steps=1_000_000)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "pipeline" / "train.py"), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while not losses(tmp_path / "run") and process.poll() is None:
        time.sleep(0.1)
    cut = data / "tiny-00002-00000.tar"
    os.truncate(cut, 700)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    assert "Traceback" not in text
    assert f"error: rank 0 on {host_name()}: {cut} is damaged at byte " in text
