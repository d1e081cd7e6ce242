"""Many kills of one training run; minutes long, so `make soak` alone runs it."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from trainer_runs import assert_same_weights, metrics

KILLS = 50
SETTINGS = (
    "--model.dropout", "0.1", "--train.max_steps", "600", "--train.checkpoint_every", "3",
    "--train.validate_every", "50", "--train.validation_samples", "4",
)  # fmt: skip


def saved(run: Path) -> int:
    """Steps that the newest checkpoint holds."""
    latest = run / "checkpoints" / "latest"
    return int(latest.read_text().removeprefix("step-")) if latest.exists() else 0


@pytest.mark.soak
def test_fifty_random_kills_leave_the_weights_of_the_unbroken_run(trainer, tmp_path):
    status, text = trainer.run(tmp_path / "unbroken", *SETTINGS)
    assert status == 0, text
    rng = random.Random(0)
    run = tmp_path / "killed"
    for _ in range(KILLS):
        began, wanted = time.time(), saved(run) + 3 * rng.randint(0, 5)
        process = trainer.start(run, *SETTINGS)
        config = run / "config.yaml"  # written when the run goes on
        while not (config.exists() and config.stat().st_mtime > began and saved(run) >= wanted):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))  # into a step, or a save
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    status, text = trainer.run(run, *SETTINGS)
    assert status == 0, text
    assert metrics(run) == metrics(tmp_path / "unbroken")
    assert_same_weights(run, tmp_path / "unbroken")
