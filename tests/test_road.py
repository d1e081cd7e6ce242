"""How a stage of the demo and the replica is run and ended."""

import signal
import subprocess
import sys
from pathlib import Path

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
