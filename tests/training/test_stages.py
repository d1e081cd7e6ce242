"""Every ZeRO configuration, number of processes, micro-batch and precision learns the same."""

import subprocess
import sys
from pathlib import Path

import pytest
from plain_loop import BATCH, PEAK, WARMUP, plain_updates
from stage_matrix import CASES, case_name
from trainer_runs import SMALL, losses

from pipeline.distributed.world import free_port

pytestmark = pytest.mark.slow
STEPS = 8
SETTINGS = [
    "--train.max_steps", STEPS, "--train.batch_size", BATCH, "--train.peak_lr", PEAK,
    "--train.warmup_steps", WARMUP, "--train.checkpoint_every", 1000,
]  # fmt: skip
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}  # of the loss, relative


@pytest.fixture(scope="module")
def expected(dataset_folder) -> dict[str, list[float]]:
    return {
        precision: [loss for loss, _ in plain_updates(dataset_folder, STEPS, precision)]
        for precision in TOLERANCE
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_losses_equal_torch_alone(processes, expected, dataset_folder, tmp_path):
    script = str(Path(__file__).with_name("stage_matrix.py"))
    launcher = [str(Path(sys.executable).with_name("deepspeed")), "-q", "--master_port"]
    launcher += [str(free_port()), "--num_accelerators", str(processes)]
    finished = subprocess.run(
        [
            *(launcher if processes > 1 else [sys.executable]),
            *(script, str(tmp_path), *SMALL, *map(str, SETTINGS)),
            *("--data.train", str(dataset_folder)),
        ],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    worst: dict[str, float] = {}
    for case in CASES[processes]:
        found = losses(tmp_path / case_name(*case))
        assert len(found) == STEPS
        precision = case[2]
        for loss, reference in zip(found, expected[precision], strict=True):
            error = abs(loss / reference - 1)
            worst[precision] = max(worst.get(precision, 0.0), error)
            assert error < TOLERANCE[precision], (case, found, expected[precision])
    print(f"{processes} processes, worst relative difference: {worst}")
