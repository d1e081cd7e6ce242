"""Many kills of one training run; minutes long, so `make soak` alone runs it."""

import os
import random
import signal
import time

import pytest
from trainer_runs import metrics

KILLS = 50
SETTINGS = (
    "--model.dropout", "0.1", "--train.max_steps", "400", "--train.checkpoint_every", "3",
    "--train.validate_every", "50", "--train.validation_samples", "4",
)  # fmt: skip


@pytest.mark.soak
def test_fifty_random_kills_leave_the_weights_of_the_unbroken_run(trainer, tmp_path):
    status, text = trainer.run(tmp_path / "unbroken", *SETTINGS)
    assert status == 0, text
    rng = random.Random(0)
    run = tmp_path / "killed"
    for _ in range(KILLS):
        process = trainer.start(run, *SETTINGS)
        # Start-up takes about six seconds; a save is going on much of the time after it.
        time.sleep(rng.uniform(5, 9))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    status, text = trainer.run(run, *SETTINGS)
    assert status == 0, text
    assert metrics(run) == metrics(tmp_path / "unbroken")
    for name in ("last", "best"):
        ours, theirs = (
            (folder / name / "model" / "model.safetensors").read_bytes()
            for folder in (run, tmp_path / "unbroken")
        )
        assert ours == theirs
