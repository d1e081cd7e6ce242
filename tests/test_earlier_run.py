"""Datasets and checkpoints of earlier code are still read, and their runs resume.

`fixtures/earlier_run` was written by commit 98ea389: twelve made-up documents prepared by
`preprocessing.finetune`, and a run of the debug recipe that ended after step 2. `expected.json`
holds what that commit itself read, computed, and recorded when it trained on to step 4.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.common.paths import ROOT
from pipeline.data.order import GlobalOrder
from pipeline.model import load_model
from pipeline.shards import Dataset

EARLIER = Path(__file__).parent / "fixtures" / "earlier_run"
EXPECTED = json.loads((EARLIER / "expected.json").read_text())
MODEL = (
    "--model.d_model 16 --model.d_ff 16 --model.state_dim 4 --model.encoder_layers 1 "
    "--model.decoder_layers 1 --model.head_dim 8"
).split()


def sha256_of_samples(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for number in range(len(dataset)):
        sample = dataset[number]
        for ids in (sample.source, sample.target):
            digest.update(ids.astype("<u2").tobytes())
        digest.update(json.dumps(sample.metadata, sort_keys=True).encode())
    return digest.hexdigest()


def test_the_dataset_has_the_same_samples_fingerprint_and_order():
    dataset = Dataset(EARLIER / "dataset")
    assert len(dataset) == 12
    assert dataset.fingerprint == EXPECTED["fingerprint"]
    assert sha256_of_samples(dataset) == EXPECTED["samples_sha256"]
    order = GlobalOrder([[shard.samples for shard in dataset.shards]], batch_size=8, seed=0)
    steps = [[list(ref) for ref in order.samples(step)] for step in range(8)]
    assert hashlib.sha256(json.dumps(steps).encode()).hexdigest() == EXPECTED["order_sha256"]


def test_the_model_folder_gives_the_same_loss():
    sample = Dataset(EARLIER / "dataset")[0]
    source, target = (
        torch.from_numpy(ids.astype("int64"))[None] for ids in (sample.source, sample.target)
    )
    with torch.no_grad():
        loss = load_model(EARLIER / "run" / "last" / "model")(source, None, target).loss
    assert loss is not None
    assert loss.item() == pytest.approx(EXPECTED["model_loss"], abs=1e-6)


@pytest.mark.slow
def test_the_run_resumes_with_the_same_losses(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(EARLIER / "run", run, symlinks=True)
    command = [sys.executable, str(ROOT / "pipeline" / "train.py")]
    command += ["--config", "pipeline/recipes/debug.yaml", *MODEL, "--train.max_steps", "4"]
    command += ["--data.train", str(EARLIER / "dataset"), "--output", str(run)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["loss"] for line in lines] == pytest.approx(EXPECTED["losses"], abs=1e-6)
    assert (run / "last").resolve().name == "step-00000004"
