"""Every ZeRO configuration, number of processes, micro-batch and precision learns the same."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from stage_matrix import CASES, case_name
from trainer_runs import SMALL, metrics

from pipeline.data.batches import collate
from pipeline.data.order import GlobalOrder
from pipeline.distributed import free_port
from pipeline.model import Locost, LocostConfig
from pipeline.shards import Dataset

pytestmark = pytest.mark.slow
STEPS, BATCH, PEAK, WARMUP = 20, 8, 0.01, 4
SETTINGS = [
    "--train.max_steps", STEPS, "--train.batch_size", BATCH, "--train.peak_lr", PEAK,
    "--train.warmup_steps", WARMUP, "--train.checkpoint_every", 1000,
]  # fmt: skip
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}  # of the loss, relative


def plain_losses(dataset: Dataset, precision: str) -> Iterator[float]:
    """The losses of torch alone: one process, whole batches, AdamW, the formula's schedule."""
    torch.manual_seed(0)
    model = Locost(
        LocostConfig(
            vocab_size=dataset.manifest["tokenizer"]["vocab_size"],
            **{SMALL[k].split(".")[1]: int(SMALL[k + 1]) for k in range(0, len(SMALL), 2)},
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    order = GlobalOrder([[shard.samples for shard in dataset.shards]], BATCH, 0)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * ((WARMUP + 1) / max(step + 1, WARMUP + 1)) ** 0.5
        batch = collate([dataset[ref.sample] for ref in order.samples(step)], 0, 0)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(batch.input_ids, batch.attention_mask, batch.labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


@pytest.fixture(scope="module")
def expected(dataset_folder) -> dict[str, list[float]]:
    dataset = Dataset(dataset_folder)
    return {precision: list(plain_losses(dataset, precision)) for precision in TOLERANCE}


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
        timeout=500,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    worst: dict[str, float] = {}
    for case in CASES:
        losses = [line["loss"] for line in metrics(tmp_path / case_name(*case))]
        assert len(losses) == STEPS
        precision = case[2]
        for loss, reference in zip(losses, expected[precision], strict=True):
            error = abs(loss / reference - 1)
            worst[precision] = max(worst.get(precision, 0.0), error)
            assert error < TOLERANCE[precision], (case, losses, expected[precision])
    print(f"{processes} processes, worst relative difference: {worst}")
