"""What processes that share documents send each other: the formula against what the model sends."""

from dataclasses import dataclass, replace

import pytest
import torch

from pipeline.common.gpus import GPUS
from pipeline.estimation.activations import PaddedShape
from pipeline.estimation.sequence_exchange import exchanged_positions, sequence_bytes
from pipeline.estimation.step_time import Assumptions, MicroBatchTimes, counts
from pipeline.model import Locost, LocostConfig
from pipeline.model.sequence import Unconnected

SMALL = LocostConfig(
    vocab_size=50, d_model=16, state_dim=4, d_ff=24, encoder_layers=3, decoder_layers=2,
    num_heads=2, head_dim=8,
)  # fmt: skip


@dataclass(frozen=True)
class Counting(Unconnected):
    """Counts what `ConnectedGroup` would send; tests/test_benchmark_sequence.py has real ones."""

    sent: tuple[list[int], ...] = ([],)

    def exchange(self, parts):
        self.sent[0].append(parts.nbytes * (self.size - 1) // self.size)
        return super().exchange(parts)

    def stack(self, x):
        self.sent[0].append(x.nbytes * (self.size - 1))
        return super().stack(x)

    def sum(self, x):
        self.sent[0].append(2 * x.nbytes * (self.size - 1) // self.size)
        return super().sum(x)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("processes", "complex_"), [(1, False), (2, False), (4, True)])
def test_the_bytes_that_a_process_sends(processes, complex_, recompute, bf16):
    config = SMALL if not complex_ else LocostConfig(**vars(SMALL) | {"ssm_projections": "complex"})
    batch, group = PaddedShape(3, 37, 6), Counting(processes, 0, ([],))
    model = Locost(config)
    model.recompute_activations(recompute)
    model.use_sequence(group)
    ids, labels = torch.ones(3, 37, dtype=torch.long), torch.ones(3, 6, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(ids, None, labels).loss
    loss.backward()
    formula = sequence_bytes(config, 2 if bf16 else 4, recompute, batch, processes)
    assert sum(group.sent[0]) == formula


@pytest.mark.parametrize(
    ("tokens", "recompute", "gigabytes"),
    [(600_000, False, 4.8), (600_000, True, 7.3), (1_000_000, False, 8.1), (1_000_000, True, 12.1)],
)
def test_the_base_model_over_eight_processes(tokens, recompute, gigabytes):
    """By hand: 12 blocks, 4 or 6 ways, 768 channels of 2 bytes, an eighth of the tokens, of which 7
    of 8 are sent; the decoder's share does not grow with the source."""
    config, batch = LocostConfig(), PaddedShape(1, tokens, 1024)
    encoder = exchanged_positions(config, 2, recompute, batch, 8)
    assert encoder == 12 * (6 if recompute else 4) * 768 * 2 * (tokens // 8) * 7 // 8
    assert encoder / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert sequence_bytes(config, 2, recompute, batch, 8) < 1.03 * encoder


def test_a_process_of_a_group_does_its_part_in_time():
    """Long enough that the source takes most of the time, which launches do not count in."""
    shape = PaddedShape(1, 60_000, 16)
    config = LocostConfig(**vars(SMALL) | {"d_model": 64, "d_ff": 128, "dropout": 0.0})
    alone, shared = (
        MicroBatchTimes(config, True, False, Assumptions(node_link=1e9), [shape], processes)
        for processes in (1, 4)
    )
    share = shared.of(shape)[0] / alone.of(shape)[0]
    assert 0.24 < share < 0.35, share
    dropped = replace(config, dropout=0.1)  # which is left out
    assert counts(dropped, True, shape, GPUS["h100"], 4) == pytest.approx(
        counts(config, True, shape, GPUS["h100"], 4)
    )
    assert alone.exchange(shape) == 0
    assert shared.exchange(shape) == sequence_bytes(config, 2, False, shape, 4) / 1e9
