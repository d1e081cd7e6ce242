"""Commands run by path, from any folder, without an installation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
START = "if not __package__:\n    import _start  # noqa: F401\n"
COMMANDS = [
    path
    for room in ("pipeline", "preprocessing")
    for path in sorted((ROOT / room).glob("*.py"))
    if '\nif __name__ == "__main__":\n' in path.read_text()
]


def run(script: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_there_are_commands():
    assert {"train", "evaluate", "summarize", "pretrain", "show"} <= {c.stem for c in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_command_begins_with_the_shared_start(command):
    text = command.read_text()
    before, found, _ = text.partition(START)
    assert found and "import " not in before.rpartition('"""')[2]


def test_the_start_is_the_same_in_both_folders():
    assert (
        len({(ROOT / room / "_start.py").read_text() for room in ("pipeline", "preprocessing")})
        == 1
    )


@pytest.mark.parametrize("start", [START, ""])
def test_no_module_next_to_a_command_hides_a_package(start, tmp_path):
    room = tmp_path / "root" / "room"
    room.mkdir(parents=True)
    shutil.copy(ROOT / "pipeline" / "_start.py", room)
    (room / "numpy.py").write_text("hidden = True\n")
    (room / "command.py").write_text(
        f"{start}import numpy, sys\nprint(numpy.hidden, sys.path[0])\n"
    )
    done = run(room / "command.py", folder=tmp_path)
    if start:
        assert "has no attribute 'hidden'" in done.stderr
    else:  # as it is without the start
        assert done.stdout == f"True {room}\n"


def test_a_command_runs_by_path_from_another_folder(tmp_path):
    done = run(ROOT / "pipeline" / "node_check.py", "look", str(tmp_path), folder=tmp_path)
    assert done.returncode == 0 and str(tmp_path) in done.stdout
