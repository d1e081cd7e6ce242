"""The launches of fault_matrix.py and of fault_injection.py."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from trainer_runs import SETTINGS, SMALL, TRAIN, TrainingRuns

from pipeline.distributed.world import free_port

HERE = Path(__file__).parent


@dataclass(frozen=True)
class FaultRuns:
    """What fault_matrix.py left: run folders under `path`, what each rank told of every case."""

    path: Path
    ranks: list[dict[str, Any]]
    printed: str


@pytest.fixture(scope="session")
def fault_runs(dataset_folder, tmp_path_factory) -> FaultRuns:
    """One launch for all cases; about a minute."""
    output = tmp_path_factory.mktemp("faults")
    launcher = [str(Path(sys.executable).with_name("deepspeed")), "-q", "--master_port"]
    launcher += [str(free_port()), "--num_accelerators", "2", str(HERE / "fault_matrix.py")]
    finished = subprocess.run(
        [*launcher, str(output), *SMALL, *SETTINGS, "--data.train", str(dataset_folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
    )
    assert finished.returncode == 0, finished.stdout
    ranks = [json.loads((output / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    return FaultRuns(output, ranks, finished.stdout)


def launch(
    trainer: TrainingRuns, output: Path, *more: str, fault: str = "", processes: int = 2
) -> subprocess.Popen:
    """Under the true launcher: train.py, or fault_injection.py where there is a fault."""
    script = HERE / "fault_injection.py" if fault else TRAIN
    return subprocess.Popen(
        trainer.command(output, *more, processes=processes, script=script),
        env={**os.environ, "FAULT": fault},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_of(output: Path, *words: str) -> list[int]:
    """Living processes, other than zombies, whose command line has the run folder and the words."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if str(output) in command and all(word in command for word in words):
            found.append(int(folder.name))
    return found


def end(process: subprocess.Popen) -> None:
    """Whatever is left of a launch goes with the test."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
