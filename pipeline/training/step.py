"""One update of the weights."""

import math
from collections.abc import Callable, Sequence

import deepspeed
import numpy as np
import torch

from pipeline.baselines.registry import ModelConfig
from pipeline.data.collate import MicroBatch
from pipeline.distributed.world import World
from pipeline.model.locost import check_inputs
from pipeline.training.state import Verdict

SKIPPED = Verdict(math.nan, math.nan, wanted=False, stopping=False)
"""The verdict of an update that must not happen."""


def update(
    engine: deepspeed.DeepSpeedEngine,
    micro_batches: Sequence[MicroBatch],
    target_tokens: int,
    world: World,
    judge: Callable[[torch.Tensor], Verdict],
    after_part: Callable[[str], None],
) -> Verdict:
    """Forward and backward of this rank's micro-batches, then the optimizer's step; a collective.

    Each loss is the sum over target tokens divided by `target_tokens`, those of the whole batch, so
    the gradient does not depend on how the batch is cut. DeepSpeed averages over ranks and
    micro-batches: `scale` undoes that. Ranks that share documents compute the same loss, and their
    gradients add up to that of the sum of their losses: a group counts once in the average over
    ranks times `data_size`, and in the loss by the ranks' equal shares.

    Before the last backward pass `judge` receives this rank's share of the loss, still on its
    device: until then the host only queues work. Where its verdict is not `wanted`, the gradient
    becomes NaN, and DeepSpeed skips the update (stages 1 to 3 do so for any norm that is not
    finite).
    """
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    scale = world.data_size * len(micro_batches) / target_tokens
    for number, micro_batch in enumerate(micro_batches, start=1):
        check_ids(engine.module.config, micro_batch)
        output = engine(
            micro_batch.input_ids.to(world.device, non_blocking=True),
            micro_batch.attention_mask.to(world.device, non_blocking=True),
            micro_batch.labels.to(world.device, non_blocking=True),
            loss_reduction="sum",
            loss_only=True,
            check=False,
        )
        loss = output.loss
        del output  # its states would live through the next forward pass
        total += loss.detach()
        if number == len(micro_batches):
            verdict = judge(total / (target_tokens * world.sequence_size))
            scale = scale if verdict.wanted else math.nan
        after_part("forward")
        engine.backward(loss * scale)
        after_part("backward")
        engine.step()
        after_part("optimizer")
    return verdict


def check_ids(config: ModelConfig, micro_batch: MicroBatch) -> None:
    """Raise ValueError for ids outside the vocabulary, before the transfer to a GPU."""
    check_inputs(config, micro_batch.input_ids, micro_batch.attention_mask, micro_batch.labels)


def seed_dropout(seed: int, step: int, data_rank: int) -> None:
    """Make dropout a function of (seed, step, data rank), so that a resumed run repeats it.

    Ranks that share documents start alike: the encoder draws for each what differs.
    """
    state = np.random.SeedSequence((seed, step, data_rank)).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(state) >> 1)
