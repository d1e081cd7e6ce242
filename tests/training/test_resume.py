"""Resumed runs: bit for bit on the same processes, to rounding on others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from resume_matrix import END, FEWER, PAIR, SAME, STOP, resumed_name
from safetensors.torch import load_file
from trainer_runs import SETTINGS, SMALL, losses, metrics

from pipeline.distributed.world import free_port

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("resume_matrix.py")
# Groups of different rates and decay, so that one group's in place of another's would show.
OPTIONS = [
    "--train.weight_decay", "0.1", "--train.embedding_lr_scale", "2",
    "--train.checkpoint_every", str(STOP), "--train.keep_checkpoints", "2",
]  # fmt: skip


def start_words(processes: int) -> list[str]:
    """The command line's beginning that starts a script on so many processes."""
    if processes == 1:
        return [sys.executable]
    launcher = [str(Path(sys.executable).with_name("deepspeed")), "-q", "--master_port"]
    return [*launcher, str(free_port()), "--num_accelerators", str(processes)]


@pytest.fixture(scope="module")
def matrix(dataset_folder, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("matrix")
    words = [*SMALL, *SETTINGS, "--data.train", str(dataset_folder), *OPTIONS]
    for phase, processes in (("alone", 1), ("pair", 2), ("fewer", 1)):
        command = [*start_words(processes), str(SCRIPT), phase, str(output), *words]
        result = subprocess.run(command, capture_output=True, text=True, timeout=1500)
        assert result.returncode == 0, result.stdout + result.stderr
    return output


def state(run: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of a run's last checkpoint, put together from the pieces' names."""
    tensors = load_file(run / "last/model/model.safetensors")
    for name, shape in {name: tensor.shape for name, tensor in tensors.items()}.items():
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors[f"{moment} {name}"] = torch.full((shape.numel(),), torch.nan)
    for path in (run / "last/optimizer").iterdir():
        for key, piece in load_file(path).items():
            place, name = key.split(":")
            moment, start = place.split("@")
            whole = tensors[f"{moment} {name}"]
            assert whole[int(start) : int(start) + len(piece)].isnan().all()  # told once
            whole[int(start) : int(start) + len(piece)] = piece
    assert not any(tensor.isnan().any() for tensor in tensors.values())
    return tensors


def test_what_changed_is_told_in_one_line(matrix):
    told = json.loads((matrix / "told-fewer.json").read_text())
    name = resumed_name("zero1-fp32", "zero3", 2, 1)
    (line,) = [line for line in told[name].splitlines() if "resumes after" in line]
    assert line.endswith(
        f"resumes after step {STOP}; changed settings: processes was 2, now 1, "
        "zero_stage was 1, now 3"
    )


@pytest.mark.parametrize(("zero", "precision"), SAME)
def test_the_same_processes_resume_bit_for_bit(matrix, zero, precision):
    unbroken = matrix / f"{zero}-{precision}"
    run = matrix / resumed_name(unbroken.name, zero, 2, 2)
    assert metrics(run) == metrics(unbroken)
    ours, theirs = state(run), state(unbroken)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("source", "zero", "accumulation", "processes"),
    [(*case, 2) for case in PAIR] + [(*case, 1) for case in FEWER],
)
def test_other_processes_stages_and_micro_batches_to_rounding(
    matrix, source, zero, accumulation, processes
):
    unbroken = matrix / ("zero2-fp32" if source == "alone" else source)
    run = matrix / resumed_name(source, zero, accumulation, processes)
    # Seen: 1.3e-7 and 4e-6 of the largest element in fp32, 2.2e-4 and 1.2e-2 in bf16.
    tolerance, of_state = (2e-3, 1e-1) if source.endswith("bf16") else (1e-6, 1e-4)
    assert len(losses(run)) == END
    assert losses(run) == pytest.approx(losses(unbroken), rel=tolerance)
    ours, theirs = state(run), state(unbroken)
    for name, expected in theirs.items():
        error = (ours[name] - expected).abs().max() / expected.abs().max().clamp(min=1e-8)
        assert error < of_state, name
