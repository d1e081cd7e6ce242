"""`benchmark.py sequence`: real processes against the formulas of estimates, at a toy size."""

import json
import re

import pytest

from pipeline import benchmark
from pipeline.benchmarking import sequence

DOCUMENTED = 0.2
"""Share by which a peak may differ from its formula: docs/books.md."""


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [pytest.param(False, marks=pytest.mark.soak), True])
def test_peaks_and_bytes_sent_are_those_of_the_formulas(recompute, tmp_path, capsys):
    arguments = ["--lengths", "16001", "--processes", "1", "2", "4", "--output", str(tmp_path)]
    arguments += ["--recompute"] * recompute
    assert benchmark.main(["sequence", *arguments]) == 0
    rows = json.loads((tmp_path / "sequence.json").read_text())["rows"]
    assert [row["processes"] for row in rows] == [1, 2, 4]
    assert "sent MB" in capsys.readouterr().out
    for row in rows:
        assert row["sent"] == [row["expected_sent"]] * row["processes"]
        assert bool(row["expected_sent"]) == (row["processes"] > 1)
        for peak in row["peak"]:
            assert peak == pytest.approx(row["expected_peak"], rel=DOCUMENTED), row


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--processes", "3"], "sequence_parallel_size 3 does not divide model.d_model 32"),
        (["--lengths", "1000000000"], "1,000,000,000 tokens over 1 processes need .* GiB"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_cannot_be_measured_is_one_line(options, words, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["sequence", *options, "--output", str(tmp_path)])
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert re.search(words, error), error


def test_a_process_that_fails_is_named(tmp_path, monkeypatch):
    """Here for want of a program to start."""
    monkeypatch.setattr(sequence, "PROGRAM", tmp_path / "absent.py")
    with pytest.raises(RuntimeError, match=r"status 2:[\s\S]*absent\.py"):
        sequence.measure("debug.yaml", [64], [1], 4, 50, False)
