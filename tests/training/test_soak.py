"""Many kills of one training run; minutes long, so `make soak` alone runs it."""

import os
import random
import signal
import time

import pytest
from trainer_runs import metrics

KILLS = 50
SETTINGS = (
    "--model.dropout", "0.1", "--train.max_steps", "600", "--train.checkpoint_every", "3",
    "--train.validate_every", "50", "--train.validation_samples", "4",
)  # fmt: skip


@pytest.mark.soak
def test_fifty_random_kills_leave_the_weights_of_the_unbroken_run(trainer, tmp_path):
    status, text = trainer.run(tmp_path / "unbroken", *SETTINGS)
    assert status == 0, text
    rng = random.Random(0)
    run = tmp_path / "killed"
    reached = []
    for _ in range(KILLS):
        began = time.time()
        process = trainer.start(run, *SETTINGS)
        config = run / "config.yaml"  # written when the run goes on
        while not (config.exists() and config.stat().st_mtime > began):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        # The start-up check, then steps; a save is going on much of the time.
        time.sleep(rng.uniform(0, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        latest = run / "checkpoints" / "latest"
        reached.append(latest.read_text() if latest.exists() else "nothing")
    assert len(set(reached)) > KILLS // 3, reached  # the kills met steps and saves
    status, text = trainer.run(run, *SETTINGS)
    assert status == 0, text
    assert metrics(run) == metrics(tmp_path / "unbroken")
    for name in ("last", "best"):
        ours, theirs = (
            (folder / name / "model" / "model.safetensors").read_bytes()
            for folder in (run, tmp_path / "unbroken")
        )
        assert ours == theirs
    print(f"{KILLS} kills, checkpoints reached: {reached}")
