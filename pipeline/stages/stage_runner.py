"""Runs stages, each a command line, one after another in a folder.

A completed stage is skipped; an interrupted one runs again, and its command resumes.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipeline.common.files import hold_lock, replace_json
from pipeline.common.paths import ROOT


@dataclass(frozen=True)
class CommandStage:
    """A named command line; `command` is called only after the stages before it are complete.

    Where the file `result` is there, made here or taken from elsewhere, the stage is complete.
    """

    name: str
    title: str
    command: Callable[[], list[str]]
    result: Path | None = None


def run_stages(
    folder: Path,
    settings: Mapping[str, object],
    stages: Sequence[CommandStage],
    report: CommandStage,
) -> int:
    """Run the incomplete ones of `stages` in `folder`, then always the report.

    Returns the exit status: 0 with the report written, 2 where another process is using the folder.
    Raises SystemExit with the status of a stage that failed. A folder with other `settings` is
    moved aside.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = hold_lock(folder.with_name(f".{folder.name}.lock"))
    if lock is None:
        print(f"error: another process is writing to {folder}; wait for it", file=sys.stderr)
        return 2
    prepare_folder(folder, settings)
    wait_for_orphans(folder)
    for number, stage in enumerate(stages, 1):
        run_stage(stage, number, len(stages) + 1, folder / "stages")
    markers = (folder / "stages" / f"{stage.name}.json" for stage in stages)
    done = [json.loads(marker.read_text()) for marker in markers if marker.exists()]
    replace_json(folder / "stages.json", done)
    (folder / "stages" / f"{report.name}.json").unlink(missing_ok=True)  # fast, and never outdated
    run_stage(report, len(stages) + 1, len(stages) + 1, folder / "stages")
    print(f"\nThe report: {folder / 'report.md'} and report.html")
    return 0


def run_stage(stage: CommandStage, number: int, count: int, markers: Path) -> None:
    """Run a stage and mark it complete; SystemExit with its status when it fails."""
    marker = markers / f"{stage.name}.json"
    print(f"\n[{number}/{count}] {stage.title}", flush=True)
    if marker.exists():
        print("complete, skipped")
        return
    if stage.result is not None and stage.result.exists():
        print(f"skipped: {displayed([str(stage.result)])} has its result")
        return
    command = stage.command()
    print(f"$ {displayed(command)}", flush=True)
    began = time.monotonic()
    status = run_command(command)
    if status:
        print(f"error: stage '{stage.name}' ended with status {status}; run the same command again "
              "to resume here", file=sys.stderr)  # fmt: skip
        raise SystemExit(status if 0 < status < 128 else 1)
    replace_json(
        marker,
        {
            "name": stage.title,
            "seconds": round(time.monotonic() - began, 1),
            "command": displayed(command),
        },
    )


def displayed(command: list[str]) -> str:
    """The command as typed in the repository, without paths of this machine."""
    words = [word.replace(f"{ROOT}/", "").replace(".venv/bin/", "") for word in command]
    return shlex.join(words)


def two_core_environment() -> dict[str, str]:
    """This process's environment, changed for commands that share two CPU cores."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",  # sized for two CPU cores: the same on every machine
        "DS_ACCELERATOR": "cpu",
        # OpenMP threads spin while they wait for each other: two per process take seven times as
        # long on a busy machine, and at these sizes are no faster on a quiet one.
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }


def run_command(command: list[str]) -> int:
    """Run a command in its own process group, which ends when this process is signalled.

    Returns its exit status. Raises SystemExit with 128 + the signal that ended this process.
    """
    child = subprocess.Popen(command, env=two_core_environment(), start_new_session=True)

    received: list[int] = []
    killer = threading.Timer(60, os.killpg, (child.pid, signal.SIGKILL))
    killer.daemon = True

    # The handler must not wait: child.wait() below, which it interrupts, holds the child's lock.
    def end(number: int, frame: FrameType | None) -> None:
        if not received:
            killer.start()
        received.append(number)
        os.killpg(child.pid, signal.SIGTERM)

    previous = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        status = child.wait()
    finally:
        killer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        raise SystemExit(128 + received[0])
    return status


def prepare_folder(folder: Path, settings: Mapping[str, object]) -> None:
    """Make the folder, or keep it if its settings are these; move any other aside."""
    path = folder / "settings.json"
    if path.exists() and json.loads(path.read_text()) != settings:
        aside = next(name for name in _numbered(folder) if not name.exists())
        print(f"{folder.name}/ holds a run with other settings; moved to {aside.name}/")
        folder.rename(aside)
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    replace_json(path, settings)


def _numbered(folder: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield folder.with_name(f"{folder.name}-previous-{number}")
        number += 1


def wait_for_orphans(folder: Path) -> None:
    """Wait for trainings and evaluations that outlived a killed run; they finish their work."""
    for lock in folder.rglob(".lock"):
        waiting = False
        while (held := hold_lock(lock)) is None:
            if not waiting:
                print(f"{lock.parent.name}: a process still works there; waiting for it")
            waiting = True
            time.sleep(1)
        held.close()
