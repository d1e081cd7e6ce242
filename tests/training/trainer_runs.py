"""Runs of the real trainer at a tiny size."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import ForkedRun, ForkServer

from pipeline.distributed.world import free_port

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "pipeline" / "train.py"
SMALL = [
    "--model.d_model", "16", "--model.d_ff", "32", "--model.state_dim", "4",
    "--model.encoder_layers", "2", "--model.decoder_layers", "2", "--model.num_heads", "2",
    "--model.head_dim", "8",
]  # fmt: skip
SETTINGS = [
    "--train.max_steps", "10", "--train.batch_size", "8", "--train.accumulation", "2",
    "--train.warmup_steps", "4", "--train.peak_lr", "0.01", "--train.checkpoint_every", "4",
    "--train.validate_every", "5", "--train.max_new_tokens", "8",
]  # fmt: skip


UNBROKEN = (
    "--model.dropout", "0.1", "--train.validation_rouge", "true", "--train.picture_every", "5",
)  # fmt: skip
"""The options of the uninterrupted run."""


class TrainingRuns:
    """Starts train.py on the tiny datasets: forked ranks, or the command that users type."""

    def __init__(self, server: ForkServer, train: Path, validation: Path) -> None:
        self.server = server
        self.data = ["--data.train", str(train), "--data.validation", str(validation)]

    def arguments(self, output: Path, *more: str) -> list[str]:
        return [*SMALL, *SETTINGS, *self.data, "--output", str(output), *more]

    def command(self, output: Path, *more: str, processes: int = 2, script: Path = TRAIN) -> list:
        """`deepspeed pipeline/train.py ...`, or python for one process."""
        launcher = [str(Path(sys.executable).with_name("deepspeed")), "-q", "--master_port"]
        launcher += [str(free_port()), "--num_accelerators", str(processes)]
        start = launcher if processes > 1 else [sys.executable]
        return [*start, str(script), *self.arguments(output, *more)]

    def start(self, output: Path, *more: str, processes: int = 2, fault: str = "") -> ForkedRun:
        """Forked ranks, with a `fault` of fault_injection.py in them."""
        environment = {"FAULT": fault} if fault else {}
        return self.server.start(self.arguments(output, *more), processes, environment)

    def run(
        self, output: Path, *more: str, processes: int = 2, fault: str = ""
    ) -> tuple[int | None, str]:
        """(exit status, everything printed)."""
        process = self.start(output, *more, processes=processes, fault=fault)
        text, _ = process.communicate(timeout=600)
        return process.returncode, text


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory) -> Iterator[ForkServer]:
    server = ForkServer(tmp_path_factory.mktemp("fork"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def trainer(fork_server, dataset_folder, validation_folder) -> TrainingRuns:
    return TrainingRuns(fork_server, dataset_folder, validation_folder)


@pytest.fixture(scope="session")
def unbroken(trainer, tmp_path_factory) -> Path:
    """A run of ten steps on two processes, with dropout and validation, never interrupted."""
    output = tmp_path_factory.mktemp("runs") / "unbroken"
    status, text = trainer.run(output, *UNBROKEN)
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


def losses(run: Path) -> list[float]:
    """The training loss of every step."""
    return [line["loss"] for line in metrics(run) if "loss" in line]


def weights(run: Path, name: str = "last") -> bytes:
    """The weights of the last or the best checkpoint, as they are on disk."""
    return (run / name / "model" / "model.safetensors").read_bytes()


def assert_same_weights(run: Path, other: Path) -> None:
    """Bit for bit, of the last and of the best checkpoint."""
    for name in ("last", "best"):
        assert weights(run, name) == weights(other, name), name
