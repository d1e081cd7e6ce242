"""Runs of the real trainer at a tiny size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.distributed import free_port

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "--model.d_model", "16", "--model.d_ff", "32", "--model.state_dim", "4",
    "--model.encoder_layers", "2", "--model.decoder_layers", "2", "--model.num_heads", "2",
    "--model.head_dim", "8",
]  # fmt: skip
SETTINGS = [
    "--train.max_steps", "10", "--train.batch_size", "8", "--train.accumulation", "2",
    "--train.warmup_steps", "4", "--train.peak_lr", "0.01", "--train.checkpoint_every", "4",
    "--train.validate_every", "5", "--train.max_new_tokens", "8",
    "--train.picture_every", "5",
]  # fmt: skip


class Trainer:
    """Starts train.py on the tiny datasets."""

    def __init__(self, train: Path, validation: Path) -> None:
        self.data = ["--data.train", str(train), "--data.validation", str(validation)]

    def command(self, output: Path, *more: str, processes: int = 2) -> list[str]:
        script = [str(ROOT / "pipeline" / "train.py"), *SMALL, *SETTINGS, *self.data]
        launcher = [str(Path(sys.executable).with_name("deepspeed")), "-q", "--master_port"]
        launcher += [str(free_port()), "--num_accelerators", str(processes)]
        start = launcher if processes > 1 else [sys.executable]
        return [*start, *script, "--output", str(output), *more]

    def start(self, output: Path, *more: str, processes: int = 2) -> subprocess.Popen:
        return subprocess.Popen(
            self.command(output, *more, processes=processes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, output: Path, *more: str, processes: int = 2) -> tuple[int, str]:
        """(exit status, everything printed)."""
        process = self.start(output, *more, processes=processes)
        text, _ = process.communicate(timeout=240)
        return process.returncode, text


@pytest.fixture(scope="session")
def trainer(dataset_folder, validation_folder) -> Trainer:
    return Trainer(dataset_folder, validation_folder)


@pytest.fixture(scope="session")
def unbroken(trainer, tmp_path_factory) -> Path:
    """A run of ten steps on two processes, with dropout and validation, never interrupted."""
    output = tmp_path_factory.mktemp("runs") / "unbroken"
    status, text = trainer.run(output, "--model.dropout", "0.1", "--train.validation_rouge", "true")
    assert status == 0, text
    return output


# What a clock or a meter decides, by a part of its name.
MEASURED = ("second", "tflops", "mfu", "peak_memory", "energy", "carbon")


def metrics(run: Path, timing: bool = False) -> list[dict]:
    """The lines of metrics.jsonl, without what is MEASURED unless asked for."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            name: value
            for name, value in line.items()
            if timing or not any(part in name for part in MEASURED)
        }
        for line in lines
    ]
