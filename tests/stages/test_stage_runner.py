"""How stages are run, skipped, interrupted, resumed and ended, on stand-ins in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stub_stages import NAMES, UNITS

from pipeline.common.files import hold_lock
from pipeline.stages.stage_runner import CommandStage, prepare_folder, run_command, run_stages

ROOT = Path(__file__).resolve().parents[2]
STUBS = Path(__file__).with_name("stub_stages.py")
COMPLETE = "".join(f"{name}-{unit}\n" for name in NAMES for unit in range(UNITS))
RUN = """
import sys
from pipeline.stages.stage_runner import run_command
run_command([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"])
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A folder for `demo/` in which every stage waits; in the end none does."""
    for name in NAMES:
        (tmp_path / f"hold-{name}").touch()
    yield tmp_path
    for hold in tmp_path.glob("hold-*"):
        hold.unlink()


def start(folder: Path) -> "subprocess.Popen[str]":
    """The runner of the stand-in stages."""
    return subprocess.Popen(
        [sys.executable, str(STUBS), str(folder)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(folder: Path) -> tuple[int, str]:
    """Run the stages to the end: (exit status, output)."""
    runner = start(folder)
    output, _ = runner.communicate(timeout=120)
    return runner.returncode, output


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def wait_until_ended(stage: Path) -> None:
    """Wait until no process works in the stage's folder."""
    deadline = time.monotonic() + 30
    while (lock := hold_lock(stage / ".lock")) is None:
        assert time.monotonic() < deadline, f"{stage.name} is still at work"
        time.sleep(0.02)
    lock.close()


def descendants(pid: int) -> list[int]:
    """The process and all that it started, parents first."""
    listing = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listing.splitlines()[1:]]
    found = [pid]
    for parent in found:
        found += [child for child, its in pairs if its == parent]
    return found


def power_cut(runner: "subprocess.Popen[str]") -> None:
    """SIGKILL to the runner and its stage."""
    for pid in descendants(runner.pid):
        os.kill(pid, signal.SIGKILL)


def terminate(runner: "subprocess.Popen[str]") -> None:
    """SIGTERM to the runner, which ends its stage."""
    runner.send_signal(signal.SIGTERM)


def kill_runner_alone(runner: "subprocess.Popen[str]") -> None:
    """SIGKILL to the runner; its stage survives."""
    runner.kill()


INTERRUPTIONS: dict[str, Callable[["subprocess.Popen[str]"], None]] = {
    "text": power_cut,
    "shards": terminate,
    "pretrain": kill_runner_alone,
    "finetune": terminate,
    "evaluate": power_cut,
}


def test_interrupted_in_every_stage_it_ends_with_each_unit_done_once(held):
    folder = held / "demo"
    assert tuple(INTERRUPTIONS) == NAMES
    for number, (name, interrupt) in enumerate(INTERRUPTIONS.items()):
        (held / f"begun-{name}").unlink(missing_ok=True)
        runner = start(folder)
        wait_for(held / f"begun-{name}")
        interrupt(runner)
        output, _ = runner.communicate(timeout=60) if interrupt != kill_runner_alone else ("", "")
        assert runner.wait(60) in (128 + signal.SIGTERM, -signal.SIGKILL)
        assert not (folder / "report.md").exists()
        assert len(list((folder / "stages").iterdir())) == number  # those before are complete
        units = (folder / name / "units").read_text().split()
        assert units == [f"{name}-{unit}" for unit in range(UNITS // 2)]

        if interrupt == kill_runner_alone:  # the next runner waits for the stage that survived
            again = start(folder)
            assert again.stdout is not None and again.stdout.readline() == (
                f"{name}: a process still works there; waiting for it\n"
            )
            (held / f"hold-{name}").unlink()
            wait_for(held / "begun-finetune")
            assert (folder / name / "units").read_text().split()[-1] == f"{name}-{UNITS - 1}"
            terminate(again)
            again.communicate(timeout=60)
        else:
            wait_until_ended(folder / name)
            (held / f"hold-{name}").unlink()
    status, output = finish(folder)
    assert status == 0, output
    assert output.count("complete, skipped") == len(NAMES) - 1
    assert (folder / "report.md").read_text() == COMPLETE


def test_completed_stages_are_skipped_and_the_report_is_written_again(tmp_path):
    folder = tmp_path / "demo"
    status, output = finish(folder)
    assert (status, output.count("complete, skipped")) == (0, 0)
    assert [stage["name"] for stage in json.loads((folder / "stages.json").read_text())] == [
        f"Stage {name}" for name in NAMES
    ]
    (folder / "report.md").unlink()
    status, output = finish(folder)
    assert (status, output.count("complete, skipped")) == (0, len(NAMES))
    assert (folder / "report.md").read_text() == COMPLETE


def test_a_failed_stage_ends_the_run_with_its_status_and_is_resumed(tmp_path):
    folder = tmp_path / "demo"
    (tmp_path / "fail-pretrain").touch()
    status, output = finish(folder)
    assert status == 3
    assert output.endswith(
        "error: stage 'pretrain' ended with status 3; run the same command again to resume here\n"
    )
    assert not (folder / "finetune").exists()
    (tmp_path / "fail-pretrain").unlink()
    assert finish(folder)[0] == 0
    assert (folder / "report.md").read_text() == COMPLETE


def test_a_folder_in_use_is_refused(tmp_path):
    lock = hold_lock(tmp_path / ".demo.lock")
    assert lock is not None
    with lock:
        status, output = finish(tmp_path / "demo")
    assert status == 2
    assert output == f"error: another process is writing to {tmp_path}/demo; wait for it\n"
    assert not (tmp_path / "demo").exists()


def test_a_folder_with_other_settings_is_moved_aside(tmp_path, capsys):
    folder = tmp_path / "demo"
    for number in (1, 1, 2, 3):
        prepare_folder(folder, {"number": number})
        (folder / f"made-by-{number}").touch()
    assert capsys.readouterr().out.splitlines() == [
        "demo/ holds a run with other settings; moved to demo-previous-1/",
        "demo/ holds a run with other settings; moved to demo-previous-2/",
    ]
    for name, number in (("demo-previous-1", 1), ("demo-previous-2", 2), ("demo", 3)):
        assert (tmp_path / name / f"made-by-{number}").exists()


def test_a_signalled_runner_ends_with_its_stage():
    """It once slept a minute after the stage had ended."""
    runner = subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, stdout=subprocess.PIPE)
    assert runner.stdout is not None and runner.stdout.readline() == b"begun\n"
    runner.send_signal(signal.SIGTERM)
    try:
        assert runner.wait(50) == 128 + signal.SIGTERM
    finally:
        runner.kill()


def test_a_stage_computes_with_one_thread_a_process():
    """OpenMP's spinning threads took seven times as long next to two busy programs."""
    code = "import os, sys; sys.exit(os.environ['OMP_NUM_THREADS'] != '1')"
    assert run_command([sys.executable, "-c", code]) == 0


def test_a_stage_whose_result_is_there_is_complete(tmp_path, capfd):
    ran = CommandStage("ran", "Ran", lambda: [sys.executable, "-c", "print('ran now')"])
    kept = CommandStage("kept", "Kept", lambda: ["/does/not/exist"], tmp_path / "kept.json")
    (tmp_path / "kept.json").touch()
    report = CommandStage("report", "Report", lambda: [sys.executable, "-c", "pass"])
    assert run_stages(tmp_path / "made", {}, [ran, kept], report) == 0
    assert "ran now" in (text := capfd.readouterr().out) and "kept.json has its result" in text
    times = json.loads((tmp_path / "made/stages.json").read_text())
    assert [stage["name"] for stage in times] == ["Ran"]
