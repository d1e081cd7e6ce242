"""The operators of a training step and of a decoding step, counted on a fake card.

The counts are exact for the code and the shape; no time is measured.
"""

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any
from unittest.mock import patch

import torch

from pipeline.common.gpus import Gpu
from pipeline.config import TrainConfig
from pipeline.counting.fake_card import FakeCard, autocast, empty, registered, to_card
from pipeline.counting.operator_work import Work, work_of
from pipeline.counting.step_parts import OPTIMIZER, OTHER, PARTS, Parts
from pipeline.model import Locost, LocostConfig, encoder
from pipeline.model.sequence import Unconnected
from pipeline.model.ssm import ssm_layers
from pipeline.training.optimizer import parameter_groups

DECODED = 4
"""The step of decoding that is counted."""


@dataclass
class Counts:
    """The operators of a step: how often each part ran one of a kind, and one's work."""

    operators: Counter[tuple[str, str, Work]] = field(default_factory=Counter)

    def by_part(self) -> dict[str, Work]:
        """The sum of each part that did something."""
        sums = dict.fromkeys(PARTS, Work())
        for (part, _, work), times in self.operators.items():
            sums[part] += work.times(times)
        return {part: work for part, work in sums.items() if any(work)}

    def total(self) -> Work:
        """The sum of all operators."""
        works = (work.times(times) for (_, _, work), times in self.operators.items())
        return reduce(Work.__add__, works, Work())

    def card_seconds(self, gpu: Gpu, part: str | None = None) -> float:
        """Least time of the operators, of a part or of all, one after another on a card."""
        return sum(
            times * card_seconds(work, gpu)
            for (of, _, work), times in self.operators.items()
            if part in (None, of)
        )

    def plus(self, others: "Counts") -> "Counts":
        """Both."""
        return Counts(self.operators + others.operators)

    def without(self, others: "Counts") -> "Counts":
        """These less the others."""
        left = Counter(self.operators)
        left.subtract(others.operators)
        return Counts(Counter({key: times for key, times in left.items() if times}))


def card_seconds(work: Work, gpu: Gpu) -> float:
    """Least time of one operator: of its bytes or of its operations, whichever takes longer."""
    return max(work.bytes / gpu.bandwidth, work.flops / gpu.flops + work.flops32 / gpu.flops32)


def count(run: Callable[[], object], part: str = OTHER) -> Counts:
    """The operators of a function that works on a fake card's tensors; `part`: of those that are
    not the model's."""
    counts = Counts()
    count_into(lambda: counts, run, part)
    return counts


def count_into(
    chosen: Callable[[], Counts | None], run: Callable[[], object], part: str = OTHER
) -> None:
    """As `count`, each operator into the counts that are chosen when it runs; None: into none."""
    parts = Parts(part)

    def record(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        work, part, counts = work_of(func, args, kwargs, result), parts.of_current(), chosen()
        if any(work) and counts is not None:
            counts.operators[part, func.overloadpacket.__name__, work] += 1

    with registered(), FakeCard(record):
        run()


def model_on_card(config: LocostConfig) -> Locost:
    """The model without weights, with convolutions for a card."""
    with torch.device("meta"):
        model = Locost(config)
    for layer in ssm_layers(model):
        layer.kernel_build, layer.transform = "triton", "pairs"
    to_card(model)
    return model


def micro_batch(
    config: LocostConfig, bf16: bool, batch: int, source: int, target: int, sequence: int = 1
) -> Counts:
    """Forward and backward of a micro-batch as the trainer runs them.

    `sequence`: processes that share the source, of which the work of one is counted; an exchange
    between them as a copy. Dropout is then left out: a card that is not there has no random state.
    Not counted is the second projection of a loss in several chunks: a fake card cannot recompute.
    """
    if sequence > 1:
        config = replace(config, dropout=0.0)
    model = model_on_card(config).train()
    model.use_sequence(Unconnected(sequence))
    model.decoder.shared_way = "flash" if bf16 else "blocks"
    with patch.object(encoder, "own_random", lambda *_: nullcontext()):
        return _micro_batch(model, bf16, batch, source, target)


def _micro_batch(model: Locost, bf16: bool, batch: int, source: int, target: int) -> Counts:
    model.loss_chunk = batch * target
    ids, mask = (empty((batch, source), torch.long) for _ in range(2))
    labels = empty((batch, target), torch.long)

    def run() -> None:
        with autocast(bf16):
            loss = model(ids, mask, labels, loss_reduction="sum", loss_only=True, check=False).loss
        loss.backward()

    return count(run)


def training_step(
    config: LocostConfig, train: TrainConfig, batch: int, source: int, target: int
) -> Counts:
    """Forward and backward of one micro-batch, and AdamW's step.

    Not counted are DeepSpeed's own operators: reduction and clipping of gradients, and its
    flattened copies of parameters, over which it runs AdamW on fewer, larger tensors.
    """
    model = model_on_card(config).train()
    micro_batch = _micro_batch(model, train.precision == "bf16", batch, source, target)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, train), lr=train.peak_lr, betas=train.betas,
        fused=True,  # as make_engine on a card
    )  # fmt: skip
    count(optimizer.step)  # makes its state
    return micro_batch.plus(count(optimizer.step, OPTIMIZER))


def decoding_step(config: LocostConfig, batch: int, source: int, bf16: bool = True) -> Counts:
    """One step of greedy decoding, the fourth, over cached keys and values of the source."""
    model = model_on_card(config).eval()
    ids, mask = (empty((batch, source), torch.long) for _ in range(2))

    def run(tokens: int) -> None:
        with autocast(bf16):
            model.generate(ids, mask, max_new_tokens=tokens, memory_budget=sys.maxsize)

    count(partial(run, 1))  # keeps the convolution kernels
    return count(partial(run, DECODED)).without(count(partial(run, DECODED - 1)))
