"""The launches of fault_matrix.py and faulty_train.py."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from trainer_runs import SETTINGS, SMALL, Trainer

from pipeline.distributed import free_port

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
        timeout=500,
    )
    assert finished.returncode == 0, finished.stdout
    ranks = [json.loads((output / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    return FaultRuns(output, ranks, finished.stdout)


def start_faulty(
    trainer: Trainer, output: Path, way: str, *more: str, processes: int = 2
) -> subprocess.Popen:
    """faulty_train.py instead of train.py."""
    command = trainer.command(output, *more, processes=processes)
    place = next(k for k, word in enumerate(command) if word.endswith("train.py"))
    command[place : place + 1] = [str(HERE / "faulty_train.py"), way]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
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
