"""Leases: one job per item; another takes over only when the first has ended or is long silent."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preprocessing.jobs import leases
from preprocessing.jobs.leases import Leases, this_process

ROOT = Path(__file__).resolve().parents[2]
LEASE_AND_WAIT = """
import sys, time
from pathlib import Path
from preprocessing.jobs.leases import Leases
print(Leases(Path(sys.argv[1]), 2, lambda _: False).take(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path):
    """An items folder, the set of its finished items, and a function that opens its leases."""
    done: set[int] = set()

    def open_leases(count: int = 3) -> Leases:
        return Leases(tmp_path, count, done.__contains__)

    return tmp_path, done, open_leases


def test_every_item_goes_to_one_job(folder):
    path, done, open_leases = folder
    with open_leases() as one, open_leases() as other:
        assert [one.take(), other.take(), one.take(), other.take()] == [0, 1, 2, None]
        assert json.loads((path / "00001.claim-0").read_text()) == this_process()
        for job, item in ((one, 0), (other, 1)):
            done.add(item)
            job.finish(item)
        assert one.done == [0]  # the other job's item is seen at the next look
        assert one.take() is None
        assert one.done == [0, 1] and not one.are_all_done
    assert not list(path.iterdir())  # held leases are released
    with open_leases() as third:
        assert third.done == [0, 1]
        assert third.take() == 2


def test_an_item_finished_meanwhile_is_not_made_again(folder, monkeypatch):
    path, done, open_leases = folder
    with open_leases(1) as job:
        create = leases.create_json

        def finished_just_before(*arguments):
            done.add(0)
            return create(*arguments)

        monkeypatch.setattr(leases, "create_json", finished_just_before)
        assert job.take() is None
        assert job.are_all_done
    assert not list(path.iterdir())


def test_a_killed_process_loses_its_lease_at_once(folder):
    path, _, open_leases = folder
    process = subprocess.Popen(
        [sys.executable, "-c", LEASE_AND_WAIT, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"0\n"
    with open_leases() as job:
        assert job.take() == 1  # 0 is held by a running process
        assert job.take() == 2
        process.send_signal(signal.SIGKILL)  # not waited for: still in the process table
        while job.take() != 0:
            time.sleep(0.05)
        assert sorted(file.name for file in path.glob("00000*")) == [
            "00000.claim-0",
            "00000.claim-1",
        ]
    process.wait()


def test_another_process_with_the_same_number_is_not_the_owner(folder):
    path, _, open_leases = folder
    path.joinpath("00000.claim-0").write_text(json.dumps({**this_process(), "started": "1"}))
    with open_leases() as job:
        assert job.take() == 0


@pytest.mark.parametrize("content", ["elsewhere", "unreadable"])
def test_a_lease_of_another_machine_holds_while_it_is_touched(folder, monkeypatch, content):
    path, _, open_leases = folder
    lease = path / "00000.claim-0"
    elsewhere = {**this_process(), "host": "n2", "machine": {"boot": "b", "processes": "p"}}
    lease.write_text(json.dumps(elsewhere) if content == "elsewhere" else "")
    now = 1000.0
    monkeypatch.setattr(leases.time, "monotonic", lambda: now)
    with open_leases(1) as job:
        for beat in range(5):
            os.utime(lease, (beat, beat))  # a clock that is years off
            assert job.take() is None
            now += leases.STALE_SECONDS - 1
        assert job.take() is None
        now += 2
        assert job.take() == 0


def test_held_leases_are_touched(folder, monkeypatch):
    path, _, open_leases = folder
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    with open_leases(1) as job:
        job.take()
        lease = path / "00000.claim-0"
        os.utime(lease, (0, 0))
        deadline = time.monotonic() + 30
        while lease.stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lease.unlink()  # as a job that took over does: no error
        time.sleep(0.05)


def test_a_lease_names_job_and_host(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "417")
    assert this_process()["job"] == "Slurm job 417"
    assert this_process()["host"] == os.uname().nodename
