"""Operations, memory, time and energy of a run."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.common.gpus import Gpu
from pipeline.config import RunConfig
from pipeline.data.planning import accumulations
from pipeline.estimation.activations import ActivationMemory, PaddedShape
from pipeline.estimation.lengths import Lengths, drawn_steps, padded_step
from pipeline.estimation.memory import BytesByPart, memory_by_moment, peak_bytes
from pipeline.estimation.sequence_exchange import sequence_bytes
from pipeline.estimation.step_time import Assumptions, MicroBatchTimes, StepTime, step_time
from pipeline.model import LocostConfig
from pipeline.model.flops import training_flops
from pipeline.model.parameter_counts import ParameterCounts
from pipeline.model.sequence import check_sequence
from pipeline.training.deepspeed_config import deepspeed_settings, sequence_groups
from pipeline.training.sharding import MARGIN, Sharding

HOUR = 3600


@dataclass(frozen=True)
class UpdateEstimate:
    """One update over all GPUs, with one way of padding; figures are means of drawn batches."""

    name: str
    flops: float
    """Of all padded positions, forward and backward; a multiply-add counts as two."""
    source_fill: float
    """Share of real tokens among the padded source positions."""
    source_tokens: float
    target_tokens: float
    largest: PaddedShape
    """The micro-batch that takes most memory."""
    memory: dict[str, BytesByPart]
    """Of that micro-batch: bytes by moment and part."""
    sequence_bytes: float
    """That a GPU sends to those it shares documents with, the mean of all GPUs."""
    time: StepTime | None
    """Where it was asked for."""


@dataclass(frozen=True)
class Estimate:
    """A run on a number of GPUs."""

    parameters: ParameterCounts
    sharding: Sharding
    steps: int
    real: UpdateEstimate
    """Batches by length, as the trainer makes them."""
    padded: UpdateEstimate
    """Every sample padded to the longest."""


def estimate(
    config: RunConfig, settings: dict[str, Any], processes: int, steps: int, lengths: Lengths,
    vocab_size: int, assumed: Assumptions | None = None,
) -> Estimate:  # fmt: skip
    """The estimate of a configuration with the filled-in DeepSpeed settings.

    `assumed`: to estimate the time as well, for which some micro-batches are counted (seconds).
    Raises ValueError for a baseline, for an accumulation that is not chosen yet, and for processes
    that cannot share documents as the settings say.
    """
    train, data = config.train, config.data
    if not train.accumulation:
        raise ValueError(
            "train.accumulation is 0: give a number, such as `with_accumulation` finds"
        )
    architecture = config.architecture(vocab_size)
    if not isinstance(architecture, LocostConfig):
        raise ValueError(
            f"model.baseline is {architecture.name}, and only LOCOST can be estimated; leave it "
            "out, or measure it with `python pipeline/benchmark.py systems`"
        )
    parameters, sharding = ParameterCounts.of(architecture), Sharding.of(settings, processes)
    activations = ActivationMemory(
        architecture,
        product_bytes=2 if train.precision == "bf16" else 4,
        on_gpu=True,
        recompute=train.recompute_activations,
        sequence=train.sequence_parallel_size,
    )
    check_sequence(architecture, activations.sequence)
    parts = sequence_groups(activations.sequence, processes) * train.accumulation
    limits = (data.source_length, data.target_length)
    longest = [
        lengths.longest(limit, side)
        for limit, side in zip(limits, ("source", "target"), strict=True)
    ]
    drawn = list(drawn_steps(lengths, train.batch_size, parts, limits))
    alike = padded_step(train.batch_size, parts, longest[0], longest[1])
    padded = [(real, alike) for real, _ in drawn]

    def update(name: str, steps: list[tuple[np.ndarray, list[PaddedShape]]]) -> UpdateEstimate:
        batches = [batch for _, step in steps for batch in step]
        held = {
            batch: memory_by_moment(parameters, sharding, activations, batch, train.accumulation)
            for batch in batches
        }
        largest = max(held, key=lambda batch: peak_bytes(held[batch]))
        real = np.sum([lengths.sum(axis=0) for lengths, _ in steps], axis=0)
        flops = sum(
            sum(training_flops(architecture, one.samples, one.source, one.target).values())
            for one in batches
        )
        sent = sum(
            sequence_bytes(
                architecture, activations.product_bytes, activations.recompute, one,
                activations.sequence,
            )
            for one in batches
        )  # fmt: skip
        time = None
        if assumed:
            bf16, recompute = train.precision == "bf16", train.recompute_activations
            times = MicroBatchTimes(
                architecture, bf16, recompute, assumed, batches, activations.sequence
            )
            shapes = [step for _, step in steps]
            time = step_time(shapes, times, sharding, settings, parameters.total, assumed)
        return UpdateEstimate(
            name,
            flops / len(steps),
            real[0] / sum(one.sources for one in batches),
            real[0] / len(steps),
            real[1] / len(steps),
            largest,
            held[largest],
            sent * activations.sequence / processes / len(steps),
            time,
        )

    return Estimate(
        parameters, sharding, steps, update("batches by length", drawn),
        update(f"all padded to {longest[0]:,}", padded),
    )  # fmt: skip


def with_accumulation(
    config: RunConfig, processes: int, lengths: Lengths, vocab_size: int, memory: float
) -> RunConfig:
    """The configuration with the accumulation that a start on cards of `memory` bytes would choose.

    The smallest whose estimated peak leaves MARGIN free, or the largest. Raises as `estimate`.
    """
    deepspeed_settings(config, processes)  # refuses fewer samples than processes
    groups = sequence_groups(config.train.sequence_parallel_size, processes)
    for number in accumulations(config.train.batch_size, groups):
        chosen = replace(config, train=replace(config.train, accumulation=number))
        settings = deepspeed_settings(chosen, processes)
        found = estimate(chosen, settings, processes, 1, lengths, vocab_size)
        if peak_bytes(found.real.memory) <= (1 - MARGIN) * memory:
            break
    return chosen


def step_seconds(flops: float, gpus: int, gpu: Gpu, mfu: float) -> float:
    """Seconds of a step at a share of the cards' dense 16-bit rate."""
    return flops / (gpus * gpu.flops * mfu)


def hours(steps: int, seconds: float) -> float:
    """Hours of a run: its steps, and seconds a step."""
    return steps * seconds / HOUR


def kilowatt_hours(hours: float, gpus: int, watts: float) -> float:
    """Energy of the GPUs alone; the paper's 140 h x 16 x 190 W give 425.6 kWh."""
    return hours * gpus * watts / 1000


def kilograms_co2(kilowatt_hours: float, grams_per_kilowatt_hour: float) -> float:
    """CO2 of that energy; the paper's, at 58 g/kWh, 24.7 kg."""
    return kilowatt_hours * grams_per_kilowatt_hour / 1000
