"""How often the host waits for the card in an update and in decoding: bars, to be lowered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from host_syncs import MICRO_BATCHES, HostSyncs

from pipeline.distributed.world import free_port
from pipeline.model import Locost, LocostConfig

TINY = {"vocab_size": 40, "d_model": 16, "state_dim": 4, "d_ff": 24, "encoder_layers": 1,
        "decoder_layers": 1, "num_heads": 2, "head_dim": 8}  # fmt: skip
A_MICRO_BATCH, AN_UPDATE = 1, 8
"""Most waits of the trainer's update: for each micro-batch (the check of the ids, which reads the
host's own tensors and waits for no card), and besides those (the loss, and DeepSpeed's norm and
test for overflow)."""
A_TOKEN = 1
"""Of greedy decoding: whether all rows have ended."""


def waits(run) -> int:
    with HostSyncs() as syncs:
        run()
    return sum(syncs.counts.values())


def test_each_way_of_waiting_is_counted():
    x = torch.arange(3.0)
    assert waits(lambda: x * 2) == 0
    for run in (x.tolist, x[0].item, x.cpu, x.nonzero, lambda: torch.equal(x, x + 1),
                lambda: bool(x[0]), lambda: float(x[1]), x.numpy):  # fmt: skip
        assert waits(run) == 1, run


def test_waits_of_greedy_decoding():
    torch.manual_seed(0)
    model = Locost(LocostConfig(**TINY))
    ids = torch.randint(3, 40, (2, 9))
    few, many = (
        waits(lambda n=n: model.generate(ids, max_new_tokens=n, min_new_tokens=n)) for n in (4, 12)
    )
    assert many - few <= 8 * A_TOKEN


@pytest.mark.slow
def test_waits_of_an_update():
    program = Path(__file__).with_name("host_syncs.py")
    environment = {
        **os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("counts "))
    small, large = json.loads(line.removeprefix("counts "))
    totals = [sum(counts.values()) for counts in (small, large)]
    each = (totals[1] - totals[0]) / (MICRO_BATCHES[1] - MICRO_BATCHES[0])
    assert each <= A_MICRO_BATCH, (small, large)
    assert totals[0] - each * MICRO_BATCHES[0] <= AN_UPDATE, (small, large)
