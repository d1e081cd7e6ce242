"""Every way of stopping a run; the same command goes on to the end of the unbroken one."""

import os
import signal
import time

import pytest
from fault_matrix import STEPS, STOPS
from fault_runs import end, launch, processes_of
from trainer_runs import metrics, weights

from pipeline.training.callbacks.stop_request import process_age

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
    assert weights(run) == weights(unbroken)


@pytest.mark.parametrize("target", ["worker", "command", "group"])
def test_a_signal_under_the_launcher_saves_and_leaves_nothing_running(trainer, tmp_path, target):
    run = tmp_path / "run"
    process = launch(trainer, run, "--train.max_steps", "100000")
    try:
        deadline = time.monotonic() + 300
        while not (run / "metrics.jsonl").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        (worker,) = processes_of(run, "--local_rank=1")
        if target == "worker":
            os.kill(worker, signal.SIGUSR2)
        elif target == "command":
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGTERM)
        text, _ = process.communicate(timeout=300)  # until all that could print have ended
        while processes_of(run):
            assert time.monotonic() < deadline + 60, text
            time.sleep(0.1)
    finally:
        end(process)
    reason, status = {
        "worker": ("SIGUSR2 (rank 1)", 85),
        "command": ("the deepspeed command that started it has ended", -signal.SIGTERM),
        "group": ("SIGTERM", -signal.SIGTERM),
    }[target]
    assert process.returncode == status, text
    assert reason in text and "Traceback" not in text
    assert "return code = 85" in text or target == "group"
    assert (run / "last" / "COMPLETE").is_file()


def test_the_process_age_counts_from_its_start():
    first = process_age()
    time.sleep(0.1)
    assert 0.1 <= process_age() - first < first
