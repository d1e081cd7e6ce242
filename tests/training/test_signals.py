"""Every way of stopping a run; the same command goes on to the end of the unbroken one."""

import os
import signal
import time

import pytest
from fault_matrix import STEPS, STOPS
from fault_runs import end, processes_of
from trainer_runs import metrics

from pipeline.training.signals import process_age

pytestmark = pytest.mark.slow


def test_each_way_stops_both_ranks_at_the_next_step(fault_runs):
    for told in fault_runs.ranks:
        assert [told[f"stopped/{way}"]["status"] for way in STOPS] == [85] * len(STOPS)
        taken = [[int(step) for step in told[f"stopped/{way}"]["changed"]] for way in STOPS]
        assert taken == [[1, 2], [3], [4], [5], [6], [7]]
        assert told["stopped/finished"]["status"] == 0
    run = fault_runs.path / "stopped"
    assert not (run / "STOP").exists()
    for said in ("SIGTERM (rank 1)", "stop file", "--train.stop_after 1s is over"):
        assert any(
            said in line for line in fault_runs.printed.splitlines() if "stopped after" in line
        )


def test_the_same_command_goes_on_to_the_unbroken_end(fault_runs):
    run, unbroken = fault_runs.path / "stopped", fault_runs.path / "unchecked-zero1"
    assert [line["step"] for line in metrics(run)] == [*range(1, STEPS + 1)]
    assert metrics(run) == metrics(unbroken)
    ours, theirs = (
        (folder / "last" / "model" / "model.safetensors").read_bytes() for folder in (run, unbroken)
    )
    assert ours == theirs


def test_one_rank_signalled_under_the_launcher_ends_with_85(trainer, tmp_path):
    run = tmp_path / "run"
    process = trainer.start(run, "--train.max_steps", "100000")
    try:
        deadline = time.monotonic() + 120
        while not (run / "metrics.jsonl").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        (worker,) = processes_of(run, "--local_rank=1")
        os.kill(worker, signal.SIGUSR2)
        text, _ = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 85, text
    assert "SIGUSR2 (rank 1)" in text and "Traceback" not in text
    assert (run / "last" / "COMPLETE").is_file()
    assert not processes_of(run)


def test_the_process_age_counts_from_its_start():
    first = process_age()
    time.sleep(0.1)
    assert 0.1 <= process_age() - first < first
