"""What a run will take: operations, memory, time, energy."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.benchmarking.flops import training_flops
from pipeline.config import RunConfig
from pipeline.estimation.activations import Computation, Padded
from pipeline.estimation.gpus import Gpu
from pipeline.estimation.lengths import Lengths, drawn_steps, padded_step
from pipeline.estimation.memory import Parameters, Parts, Sharding, moments, peak_bytes
from pipeline.model import LocostConfig

HOUR = 3600


@dataclass(frozen=True)
class Work:
    """An update over all GPUs, with one way of padding; figures are means of drawn batches."""

    name: str
    flops: float
    """Of the padded positions, forward and backward, multiply-adds as two."""
    source_fill: float
    """Share of real tokens among the padded source positions."""
    source_tokens: float
    target_tokens: float
    largest: Padded
    """The micro-batch that takes most memory."""
    memory: dict[str, Parts]
    """Of that one: bytes by moment and part."""


@dataclass(frozen=True)
class Estimate:
    """One run on a number of GPUs."""

    parameters: Parameters
    sharding: Sharding
    steps: int
    real: Work
    """Batches by length, as the trainer makes them."""
    padded: Work
    """Every sample padded to the longest."""


def estimate(
    config: RunConfig, settings: dict[str, Any], processes: int, steps: int, lengths: Lengths,
    vocab_size: int, on_gpu: bool = True,
) -> Estimate:  # fmt: skip
    """A run of the configuration with the filled-in DeepSpeed settings.

    Raises ValueError for a baseline.
    """
    train, data = config.train, config.data
    architecture = config.architecture(vocab_size)
    if not isinstance(architecture, LocostConfig):
        raise ValueError(
            f"model.baseline is {architecture.name}, and only LOCOST is estimated; leave it out, "
            "or measure it by `python pipeline/benchmark.py systems`"
        )
    parameters, sharding = Parameters.of(architecture), Sharding.of(settings, processes)
    computation = Computation(
        architecture, 2 if train.precision == "bf16" else 4, on_gpu, train.recompute_activations
    )
    parts = processes * train.accumulation
    limits = (data.source_length, data.target_length)
    longest = [
        lengths.longest(limit, side)
        for limit, side in zip(limits, ("source", "target"), strict=True)
    ]
    drawn = list(drawn_steps(lengths, train.batch_size, parts, limits))
    alike = padded_step(train.batch_size, parts, longest[0], longest[1])
    padded = [(real, alike) for real, _ in drawn]

    def work(name: str, steps: list[tuple[np.ndarray, list[Padded]]]) -> Work:
        batches = [batch for _, step in steps for batch in step]
        held = {
            batch: moments(parameters, sharding, computation, batch, train.accumulation)
            for batch in batches
        }
        largest = max(held, key=lambda batch: peak_bytes(held[batch]))
        real = np.sum([lengths.sum(axis=0) for lengths, _ in steps], axis=0)
        flops = sum(
            sum(training_flops(architecture, one.samples, one.source, one.target).values())
            for one in batches
        )
        return Work(
            name,
            flops / len(steps),
            real[0] / sum(one.sources for one in batches),
            real[0] / len(steps),
            real[1] / len(steps),
            largest,
            held[largest],
        )

    return Estimate(
        parameters, sharding, steps, work("batches by length", drawn),
        work(f"all padded to {longest[0]:,}", padded),
    )  # fmt: skip


def step_seconds(flops: float, gpus: int, gpu: Gpu, mfu: float) -> float:
    """Seconds of a step at a share of the cards' dense 16-bit rate."""
    return flops / (gpus * gpu.flops * mfu)


def hours(steps: int, seconds: float) -> float:
    """Of a run of so many steps."""
    return steps * seconds / HOUR


def kilowatt_hours(hours: float, gpus: int, watts: float) -> float:
    """Of the GPUs alone; the paper's 140 h x 16 x 190 W are 425.6 kWh."""
    return hours * gpus * watts / 1000


def kilograms_co2(kilowatt_hours: float, grams_per_kilowatt_hour: float) -> float:
    """CO2 of the energy; the paper's, at 58 g/kWh, 24.7 kg."""
    return kilowatt_hours * grams_per_kilowatt_hour / 1000
