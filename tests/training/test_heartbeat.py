"""The file that says from outside how far a run is."""

import json
import math

import pytest

from pipeline.training.callbacks import heartbeat


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(heartbeat.time, "time", lambda: 1e9 + Clock.now)
    return Clock


def test_it_is_written_at_the_first_step_then_every_five_seconds(tmp_path, clock, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    beats, steps = heartbeat.Heartbeat(tmp_path, 1000), []
    beats.write()
    assert not list(tmp_path.iterdir())
    for step in range(1, 31):
        beats.beat(step, 2.5, 0.25)
        steps.append(json.loads((tmp_path / "heartbeat.json").read_text())["step"])
        clock.now += 1
    assert sorted(set(steps)) == [1, 6, 11, 16, 21, 26]
    beats.write()
    assert json.loads((tmp_path / "heartbeat.json").read_text()) == {
        "step": 30, "max_steps": 1000, "loss": 2.5, "time": 1e9 + 129, "seconds_per_step": 1.0,
        "job": "42",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]


def test_the_mean_is_of_the_last_steps(tmp_path, clock, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    beats = heartbeat.Heartbeat(tmp_path, 1000)
    beats.beat(1, math.nan, 7.0)
    first = json.loads((tmp_path / "heartbeat.json").read_text())
    assert (first["seconds_per_step"], first["loss"], first["job"]) == (7.0, None, None)
    clock.now += 1000
    for step in range(2, 40):
        beats.beat(step, 2.5, 0.0)
        clock.now += 6
    assert json.loads((tmp_path / "heartbeat.json").read_text())["seconds_per_step"] == 6.0


def test_where_it_cannot_be_written_the_run_goes_on(tmp_path, clock):
    (tmp_path / "heartbeat.json").mkdir()  # nothing can be renamed to it
    heartbeat.Heartbeat(tmp_path, 10).beat(1, 2.5, 1.0)
    heartbeat.Heartbeat(tmp_path / "gone", 10).beat(1, 2.5, 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]
