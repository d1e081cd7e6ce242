"""Checks before the first step, for what would otherwise end a run after hours."""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import deepspeed
import numpy as np
import torch
from deepspeed.utils import logger

from pipeline.baselines.model import Baseline
from pipeline.baselines.registry import Model
from pipeline.config import DataConfig
from pipeline.data.batches import Batches
from pipeline.data.collate import MicroBatch
from pipeline.distributed.world import RunFailed, World
from pipeline.shards import Dataset

LOOKAHEAD = 512  # steps whose longest micro-batches are tried


def check_readable(datasets: Iterable[Dataset]) -> None:
    """Read the first and the last sample of each; ValueError names the damaged file."""
    for dataset in datasets:
        for index in {0, len(dataset) - 1} if len(dataset) else ():
            dataset[index]


def check_room(run: Path, model: Model, checkpoints: int) -> None:
    """Raise ValueError unless the run folder's disk has room for that many checkpoints.

    Each holds weights and two moments, fp32: 12 bytes a parameter.
    """
    needed = 12 * checkpoints * sum(parameter.numel() for parameter in model.parameters())
    free = shutil.disk_usage(run).free
    if free < needed:
        raise ValueError(
            f"output {run}: {free / 1e9:.1f} GB are free, {checkpoints} checkpoints of this model "
            f"take {needed / 1e9:.1f} GB; make room, give another --output or keep fewer "
            "(--train.keep_checkpoints)"
        )


def check_same_weights(model: Model, world: World) -> None:
    """Raise RunFailed unless every process holds the same bits in every parameter."""
    sums = torch.stack(
        [
            parameter.detach().view(torch.int32).sum(dtype=torch.int64)
            for parameter in model.parameters()
        ]
    )
    every = world.gather(sums.tolist())
    for (name, _), values in zip(model.named_parameters(), zip(*every, strict=True), strict=True):
        if different := [rank for rank, value in enumerate(values) if value != values[0]]:
            raise RunFailed(
                f"weights differ between processes: {name} on ranks {different} is not that of "
                "rank 0; use one machine image and one --model.init_from on all nodes"
            )


def length_limits(data: DataConfig, model: Model) -> tuple[int, int]:
    """Most source and target positions of a micro-batch: the recipe's or the model's; 0: any."""
    own = model.limits if isinstance(model, Baseline) else (None, None)
    pairs = zip((data.source_length, data.target_length), own, strict=True)
    source, target = (min(filter(None, pair), default=0) for pair in pairs)
    return source, target


Shape = tuple[int, int, int]
"""Samples, and source and target positions of each, of a micro-batch."""


@dataclass(frozen=True)
class Survey:
    """The micro-batches of the first steps to come, of all processes."""

    steps: int
    shapes: Counter[Shape]
    source_tokens: int
    target_tokens: int

    def longest(self) -> set[Shape]:
        """Those with most positions, and with most target positions.

        The encoder's activations grow with the former, the decoder's logits with the latter.
        """
        if not self.shapes:  # no steps to come
            return set()
        return {
            max(self.shapes, key=lambda shape: shape[0] * (shape[1] + shape[2])),
            max(self.shapes, key=lambda shape: shape[0] * shape[2]),
        }

    def padding(self) -> str:
        """How many lengths and shapes there are, and which share of the positions is real."""
        sources, targets = ({shape[side] for shape in self.shapes} for side in (1, 2))
        shapes = self.shapes.items()
        source = sum(times * samples * length for (samples, length, _), times in shapes)
        target = sum(times * samples * length for (samples, _, length), times in shapes)
        return (
            f"padding: {len(sources)} source and {len(targets)} target lengths in "
            f"{len(self.shapes)} shapes of micro-batches; {self.source_tokens / source:.1%} of "
            f"source and {self.target_tokens / target:.1%} of target positions are real "
            f"({self.steps} steps)"
        )


def survey(batches: Batches, steps: range, world: World) -> Survey:
    """The micro-batches of the first LOOKAHEAD steps; a collective, the work is shared out."""
    steps = steps[:LOOKAHEAD]
    plans = [batches.plan(step) for step in steps[world.rank :: world.size]]
    shapes = Counter(tuple(shape) for plan in plans for shape in plan.shapes.tolist())
    tokens = sum((plan.lengths.sum(axis=0) for plan in plans), np.zeros(2, np.int64))
    parts, tokens_of = zip(*world.gather((shapes, tokens.tolist())), strict=True)
    return Survey(len(steps), sum(parts, Counter()), *map(sum, zip(*tokens_of, strict=True)))


def made_up(shape: Shape, vocab_size: int) -> MicroBatch:
    """A micro-batch of that shape, of random ids."""
    samples, source, target = shape
    ids = np.random.default_rng(0).integers(1, vocab_size, (samples, source + target))
    both = torch.from_numpy(ids)
    return MicroBatch(both[:, :source], torch.ones(samples, source).long(), both[:, source:])


def rehearse(
    engine: deepspeed.DeepSpeedEngine,
    shapes: Iterable[Shape],
    accumulation: int,
    world: World,
    update: Callable[[Sequence[MicroBatch]], object],
) -> None:
    """Run `update`, which must end in a skipped one, on micro-batches of each shape; a collective.

    A batch that does not fit in memory fails here. Weights, optimizer state and DeepSpeed's
    counters are afterwards what they were; dropout is seeded at every step.
    """
    counters = {
        name: getattr(engine, name)
        for name in ("global_steps", "global_samples", "micro_steps", "skipped_steps")
    }
    # AdamW makes its two moments at the first update that is not skipped.
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters())
    lazy = not (engine.optimizer.state or engine.zero_cpu_offload())
    moments = torch.empty(2 * parameters // world.size if lazy else 0, device=world.device)
    level = logger.level
    logger.setLevel(logging.ERROR)  # it would warn of the skipped updates wanted here
    for shape in sorted(shapes):
        micro_batch = made_up(shape, engine.module.config.vocab_size)
        update([micro_batch] * accumulation)
        if engine.was_step_applied():
            raise RunFailed("DeepSpeed made an update with a gradient that is not finite")
    logger.setLevel(level)
    del moments
    for name, value in counters.items():
        setattr(engine, name, value)
