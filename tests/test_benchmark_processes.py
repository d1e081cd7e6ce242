"""Data parallel training against single processes: the real trainer, at a toy size."""

import json
import sys

import pytest

from pipeline import benchmark
from pipeline.benchmarking import processes
from pipeline.common.paths import ROOT

DEBUG = ROOT / "pipeline" / "recipes" / "debug.yaml"


@pytest.mark.slow
def test_both_ways_are_timed_in_one_run(dataset_folder, tmp_path, capsys):
    arguments = ["--data", str(dataset_folder), "--config", str(DEBUG), "--batch_size", "4"]
    arguments += ["--steps", "3", "--busy", "1", "--output", str(tmp_path)]
    assert benchmark.main(["processes", *arguments]) == 0
    found = json.loads((tmp_path / "processes.json").read_text())
    for way in ("together", "alone"):
        parts = [found[way][f"{part}_seconds"] for part in processes.PARTS]
        assert all(part > 0 for part in parts)
    ratio = found["alone"]["seconds"] / found["together"]["seconds"]
    assert found["efficiency"] == pytest.approx(ratio)
    printed = capsys.readouterr().out
    assert "2 processes together, 2 samples each" in printed and "busy programs: 1" in printed


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--batch_size 3, --processes 2"):
        processes.measure(tmp_path, DEBUG, 3, 2, 1, 0)


def test_a_training_that_fails_is_named(tmp_path, monkeypatch):
    """With its status and its last line, as train.py leaves both for a user's error."""
    script = "print('started'); print('error: no dataset folder absent'); raise SystemExit(2)"
    monkeypatch.setattr(processes, "deepspeed_command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(ValueError, match=r"status 2: error: no dataset folder absent"):
        processes.measure(tmp_path / "absent", DEBUG, 4, 2, 1, 0)
