"""Claims: an item goes to one job, and to another only when the first is surely or long gone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preprocessing import claims
from preprocessing.claims import Claims, this_process

ROOT = Path(__file__).resolve().parents[2]
CLAIM_AND_WAIT = """
import sys, time
from pathlib import Path
from preprocessing.claims import Claims
print(Claims(Path(sys.argv[1]), 2, lambda _: False).take(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path):
    """An items folder and the set of items that count as done."""
    done: set[int] = set()

    def open_claims(count: int = 3) -> Claims:
        return Claims(tmp_path, count, done.__contains__)

    return tmp_path, done, open_claims


def test_every_item_goes_to_one_job(folder):
    path, done, open_claims = folder
    with open_claims() as one, open_claims() as other:
        assert [one.take(), other.take(), one.take(), other.take()] == [0, 1, 2, None]
        assert "process" in other.others()[0]
        for job, item in ((one, 0), (other, 1)):
            done.add(item)
            job.finish(item)
        assert one.missing == [1, 2]  # that the other's is done shows at the next look
        assert one.take() is None
        assert (one.missing, one.done) == ([2], {0, 1})
    assert not list(path.iterdir())  # what was held is free again
    with open_claims() as third:
        assert third.done == {0, 1}
        assert third.take() == 2


def test_what_is_finished_meanwhile_is_not_made_again(folder, monkeypatch):
    path, done, open_claims = folder
    with open_claims(1) as job:
        create = claims.create_json

        def finished_just_before(*arguments):
            done.add(0)
            return create(*arguments)

        monkeypatch.setattr(claims, "create_json", finished_just_before)
        assert job.take() is None
        assert not job.missing
    assert not list(path.iterdir())


def test_a_killed_process_loses_its_claim_at_once(folder):
    path, _, open_claims = folder
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM_AND_WAIT, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"0\n"
    with open_claims() as job:
        assert job.take() == 1  # 0 is in good hands
        assert job.take() == 2
        process.send_signal(signal.SIGKILL)  # not waited for: still in the process table
        while job.take() != 0:
            time.sleep(0.05)
        assert sorted(file.name for file in path.glob("00000*")) == [
            "00000.claim-0",
            "00000.claim-1",
        ]
    process.wait()


def test_another_process_of_the_same_number_is_not_the_claimant(folder):
    path, _, open_claims = folder
    path.joinpath("00000.claim-0").write_text(json.dumps({**this_process(), "started": "1"}))
    with open_claims() as job:
        assert job.take() == 0


@pytest.mark.parametrize("content", ["elsewhere", "unreadable"])
def test_other_machines_are_believed_while_they_touch_their_claim(folder, monkeypatch, content):
    path, _, open_claims = folder
    claim = path / "00000.claim-0"
    elsewhere = {**this_process(), "host": "n2", "machine": {"boot": "b", "processes": "p"}}
    claim.write_text(json.dumps(elsewhere) if content == "elsewhere" else "")
    now = 1000.0
    monkeypatch.setattr(claims.time, "monotonic", lambda: now)
    with open_claims(1) as job:
        for beat in range(5):
            os.utime(claim, (beat, beat))  # a clock that is years off
            assert job.take() is None
            now += claims.STALE_SECONDS - 1
        assert job.take() is None
        now += 2
        assert job.take() == 0


def test_held_claims_are_touched(folder, monkeypatch):
    path, _, open_claims = folder
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.01)
    with open_claims(1) as job:
        job.take()
        claim = path / "00000.claim-0"
        os.utime(claim, (0, 0))
        deadline = time.monotonic() + 30
        while claim.stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        claim.unlink()  # swept away by a job that took over: no harm
        time.sleep(0.05)


def test_a_claim_names_job_and_host(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "417")
    assert this_process()["job"] == "Slurm job 417"
    assert this_process()["host"] == os.uname().nodename
