"""How a stage of the demo and the replica is run and ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.demo import Road, main, settings
from pipeline.road import call

ROOT = Path(__file__).resolve().parents[1]
CALL = """
import sys
from pipeline.road import call
call([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"])
"""


def test_a_road_told_to_end_ends_with_its_stage():
    """It once slept a minute after the stage had ended."""
    road = subprocess.Popen([sys.executable, "-c", CALL], cwd=ROOT, stdout=subprocess.PIPE)
    assert road.stdout is not None and road.stdout.readline() == b"begun\n"
    road.send_signal(signal.SIGTERM)
    try:
        assert road.wait(50) == 128 + signal.SIGTERM
    finally:
        road.kill()


def test_a_stage_computes_with_one_thread_a_process():
    """OpenMP's spinning threads took seven times as long beside two busy programs."""
    code = "import os, sys; sys.exit(os.environ['OMP_NUM_THREADS'] != '1')"
    assert call([sys.executable, "-c", code]) == 0


def test_the_demos_seed_is_that_of_its_trainings_and_makes_another_run(tmp_path):
    (tmp_path / "precision.json").write_text('{"faster": "fp32"}')
    road = Road(tmp_path, quick=False, seed=7)
    for command in (road.pretrain(), road.finetune("finetune"), road.finetune("scratch")):
        assert command[command.index("--train.seed") + 1] == "7"
    assert settings(False, 0) != settings(False, 7)


def test_a_negative_seed_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["--seed", "-1", "--output", str(tmp_path / "demo")])
    assert end.value.code == 2
    assert "--seed is -1, expected 0 or more" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
