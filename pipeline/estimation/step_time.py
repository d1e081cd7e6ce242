"""Seconds of an update, from the launches, bytes and operations of its micro-batches.

They are counted on a fake card from the code that trains (`pipeline.counting`): of some shapes, the
others follow from those. A micro-batch takes as long as the card or its host, whichever is slower.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.common.gpus import ACHIEVED, GPUS, LAUNCH_SECONDS, LINK, NODE_LINK, Gpu
from pipeline.counting.steps import micro_batch
from pipeline.estimation.activations import PaddedShape
from pipeline.estimation.sequence_exchange import sequence_bytes
from pipeline.model import LocostConfig
from pipeline.model.parameter_counts import FP32
from pipeline.training.sharding import Sharding

COUNTED = 8
"""Shapes that are counted; of C4's other shapes card and launches are then within 3 %."""
ADAMW_ACCESSES = 7
"""Numbers that AdamW reads and writes for each parameter: weight, two moments; the gradient."""
RECOMPUTED = 4 / 3
"""Forward, forward again and backward, to forward and backward, which takes two forward passes."""


@dataclass(frozen=True)
class Assumptions:
    """What a count does not say."""

    gpu: Gpu = GPUS["h100"]
    launch_seconds: float = LAUNCH_SECONDS
    achieved: float = ACHIEVED
    link: float = LINK
    node_link: float = NODE_LINK


@dataclass(frozen=True)
class StepTime:
    """Seconds of the parts of an update on the slowest rank, one after another."""

    micro_batches: float
    optimizer: float
    exchange: float
    """Of gradients and weights, as if nothing else was done meanwhile."""
    sequence_exchange: float
    """Of positions for channels, between the processes that share documents, likewise."""
    host_bound: float
    """Share of the micro-batches that wait for the host's launches."""

    @property
    def total(self) -> float:
        """Seconds of the update."""
        return self.micro_batches + self.optimizer + self.exchange + self.sequence_exchange


class MicroBatchTimes:
    """Card and host seconds of forward and backward of a micro-batch, by its shape.

    Of a process that shares each source with `sequence` - 1 others, without waiting for them.
    """

    def __init__(
        self, config: LocostConfig, bf16: bool, recompute: bool, assumed: Assumptions,
        shapes: Iterable[PaddedShape], sequence: int = 1,
    ) -> None:  # fmt: skip
        """Count up to COUNTED of the shapes, those between that are linear in `_terms`."""
        distinct = sorted(set(shapes), key=lambda one: (one.source, one.target, one.samples))
        places = np.linspace(0, len(distinct) - 1, min(COUNTED, len(distinct))).astype(int)
        counted = [distinct[place] for place in places]
        factor = RECOMPUTED if recompute else 1.0
        scale = factor * np.array([1 / assumed.achieved, assumed.launch_seconds])
        seconds = [scale * counts(config, bf16, one, assumed.gpu, sequence) for one in counted]
        self.config, self.recompute, self.sequence = config, recompute, sequence
        self._width, self._node_link = 2 if bf16 else FP32, assumed.node_link
        self._known = dict(zip(counted, seconds, strict=True))
        self._weights = np.linalg.lstsq(
            np.array([_terms(one) for one in counted]), np.array(seconds), rcond=None
        )[0]

    def of(self, shape: PaddedShape) -> np.ndarray:
        """(2,) seconds of the card and of the host."""
        if shape in self._known:
            return self._known[shape]
        return _terms(shape) @ self._weights

    def exchange(self, shape: PaddedShape) -> float:
        """Seconds of what the processes that share the source send each other."""
        if self.sequence == 1:
            return 0.0
        sent = sequence_bytes(self.config, self._width, self.recompute, shape, self.sequence)
        return sent / self._node_link


def _terms(shape: PaddedShape) -> np.ndarray:
    """What is done once, for each lag of the kernels, by target length, and for each position."""
    return np.array([1.0, shape.source, shape.target, shape.sources, shape.targets])


@lru_cache(256)
def counts(
    config: LocostConfig, bf16: bool, shape: PaddedShape, gpu: Gpu, sequence: int = 1
) -> np.ndarray:
    """(2,) the card's least seconds at the data sheet's rates, and the launches."""
    found = micro_batch(config, bf16, shape.samples, shape.source, shape.target, sequence)
    return np.array([found.card_seconds(gpu), found.total().launches])


def step_time(
    steps: Iterable[list[PaddedShape]], times: MicroBatchTimes, sharding: Sharding,
    settings: dict[str, Any], parameters: int, assumed: Assumptions,
) -> StepTime:  # fmt: skip
    """The mean of updates with these micro-batches, costliest first, dealt to the ranks, or to the
    groups of ranks that share documents, in turn.

    All ranks wait for the one with most to do.
    """
    groups = sharding.processes // times.sequence
    slowest, exchange, bound = [], [], []
    for shapes in steps:
        seconds = np.array([times.of(shape) for shape in shapes])
        longer = seconds.max(axis=1)
        slowest.append(longer.reshape(-1, groups).sum(axis=0).max())
        sent = np.array([times.exchange(shape) for shape in shapes])
        exchange.append(sent.reshape(-1, groups).sum(axis=0).max())
        bound.append((seconds[:, 1] > seconds[:, 0]).mean())
    accumulation = len(shapes) // groups
    updated = ADAMW_ACCESSES * sharding.part(parameters)
    return StepTime(
        float(np.mean(slowest)),
        updated / (assumed.achieved * assumed.gpu.bandwidth),
        exchanged_bytes(parameters, sharding, settings, accumulation) / assumed.link,
        float(np.mean(exchange)),
        float(np.mean(bound)),
    )


def exchanged_bytes(
    parameters: int, sharding: Sharding, settings: dict[str, Any], accumulation: int
) -> float:
    """Bytes that a rank sends in an update: of gradients reduced and weights gathered in rings.

    Stages 2 and 3 reduce after every micro-batch; stage 3 gathers the weights for each forward and
    each backward, the others once.
    """
    passed = parameters * (sharding.processes - 1) / sharding.processes
    width = FP32 if settings["communication_data_type"] == "fp32" else 2
    reductions = accumulation if sharding.stage > 1 else 1
    gathers = 2 * accumulation if sharding.stage == 3 else 1
    return passed * (width * reductions + FP32 * gathers)
