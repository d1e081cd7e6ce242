"""The costs of a step: time by part, operations, memory, energy."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from pipeline.baselines.registry import ModelConfig
from pipeline.common.gpus import peak_flops
from pipeline.data.batches import StepBatch
from pipeline.distributed.device import peak_memory_gib
from pipeline.model import LocostConfig
from pipeline.model.flops import decoder_flops, encoder_flops
from pipeline.training.callbacks.base import Callback
from pipeline.training.callbacks.recorder import NoRecorder
from pipeline.training.state import StepResult, TrainingState

JOULES_PER_KWH = 3.6e6


class StepClock:
    """Seconds of each part of a step; on a GPU by CUDA events, without synchronising in between."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.start()

    def start(self) -> None:
        """Begin a step."""
        self._marks: list[tuple[str, float | torch.cuda.Event]] = [("", self._now())]

    def lap(self, part: str) -> None:
        """Count the time since the last mark as `part`."""
        self._marks.append((part, self._now()))

    def seconds(self) -> dict[str, float]:
        """Seconds by part since `start`; waits for the device to be done."""
        if self._on_gpu:
            torch.cuda.synchronize()
        total: defaultdict[str, float] = defaultdict(float)
        for (_, before), (part, after) in zip(self._marks, self._marks[1:], strict=False):
            total[part] += _elapsed(before, after)
        return dict(total)

    def _now(self) -> "float | torch.cuda.Event":
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _elapsed(before: "float | torch.cuda.Event", after: "float | torch.cuda.Event") -> float:
    if isinstance(before, float) or isinstance(after, float):
        assert isinstance(before, float) and isinstance(after, float)
        return after - before
    return before.elapsed_time(after) / 1e3


def batch_flops(config: LocostConfig, lengths: np.ndarray, longest: np.ndarray) -> float:
    """Operations of forward and backward (three times the forward) of a global batch.

    `lengths` (N, 2) are the samples' source and target lengths, `longest` (M, 2) those of the
    micro-batches: padding and recomputation are not counted, and the kernels once a micro-batch.
    Parts and formulas are those of pipeline/model/flops.py.
    """
    samples = sum(_sample_flops(config, int(source), int(target)) for source, target in lengths)
    return 3 * (samples + sum(_kernel_flops(config, int(source)) for source, _ in longest))


@lru_cache(2**16)
def _sample_flops(config: LocostConfig, source: int, target: int) -> float:
    encoder = encoder_flops(config, 1, source)
    del encoder["kernel"]
    return sum(encoder.values()) + sum(decoder_flops(config, 1, source, target).values())


@lru_cache(2**12)
def _kernel_flops(config: LocostConfig, length: int) -> float:
    return encoder_flops(config, 1, length)["kernel"]


def energy_reader(device: torch.device) -> Callable[[], float] | None:
    """A function that gives the joules the device has used since some moment, by NVML.

    None where there is nothing to read: no NVIDIA device, no driver, or no nvidia-ml-py.
    """
    if device.type != "cuda":
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        # By UUID: CUDA_VISIBLE_DEVICES renumbers torch's devices, not NVML's.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as error:  # NVMLError is only defined by the package
        print(f"energy is not measured: {error}", file=sys.stderr)
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


class EnergyMeter:
    """Joules of this process's device, known until the first reading that fails.

    Such a failure is said once, on stderr. A meter that goes back, as after a reset of the device,
    has failed too.
    """

    def __init__(self, device: torch.device) -> None:
        self._read = energy_reader(device)
        self._last = 0.0
        self.joules()

    @property
    def measures(self) -> bool:
        """Whether there is anything to read."""
        return self._read is not None

    def joules(self) -> float | None:
        """Joules since the last call; None where they are not known."""
        if self._read is None:
            return None
        before = self._last
        try:
            self._last = self._read()
            if self._last < before:
                raise ValueError(f"the meter went back from {before:.0f} to {self._last:.0f} J")
        except Exception as error:  # NVMLError is only defined by the package
            print(f"energy is unknown from here on: {error}", file=sys.stderr, flush=True)
            self._read = None
            return None
        return self._last - before


def carbon(joules: float, grams_per_kwh: float) -> dict[str, float]:
    """Energy in kWh and its emissions in kg of CO2."""
    kwh = joules / JOULES_PER_KWH
    return {"energy_kwh": kwh, "carbon_kg": kwh * grams_per_kwh / 1e3}


class Costs(Callback):
    """Seconds, operations, memory and energy of every step, added to its metrics."""

    def __init__(self, architecture: ModelConfig, recorder: NoRecorder) -> None:
        self._architecture = architecture if isinstance(architecture, LocostConfig) else None
        self._recorder = recorder
        self.joules: float | None = 0.0
        """Of all devices since the beginning of the run; None once one of them was not read."""

    def load_state(self, progress: dict[str, Any]) -> None:
        self.joules = progress.get("joules", 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"joules": self.joules}

    def on_engine_ready(self, state: TrainingState) -> None:
        self._settings, self._world = state.config.train, state.world
        self._clock = StepClock(state.world.device)
        self._energy = EnergyMeter(state.world.device)
        meters = state.world.sum(float(self._energy.measures))[0]
        self._metered = (
            meters > 0
        )  # the same on all ranks, to the end: `_count_energy` is collective
        if meters < state.world.size:
            self.joules = None
        self._peak = self._settings.peak_tflops * 1e12 or _peak_flops(state.world.device)

    def on_loop_start(self, state: TrainingState) -> None:
        self._recorder.describe("figures", self.describe())

    def before_step(self, state: TrainingState) -> None:
        self._clock.start()

    def after_part(self, part: str) -> None:
        self._clock.lap(part)

    def after_update(self, state: TrainingState, result: StepResult) -> None:
        result.metrics.update(self.of(result.batch))  # waits for the device to be done
        if self._metered:
            self._count_energy(state.step)
        result.metrics.update(self._emissions())

    def describe(self) -> str:
        """How to read the figures."""
        peak = f"{self._peak / 1e12:.0f} TFLOP/s" if self._peak else "an unknown peak (peak_tflops)"
        known = self.joules is not None
        energy = "by NVML" if known else "unknown, of some device or of some earlier step"
        return (
            "tflops_per_process: operations of forward and backward (3 x forward, real tokens "
            f"only) over the step's time; mfu: against {peak}. energy: {energy}"
        )

    def of(self, batch: StepBatch) -> dict[str, float]:
        """The figures of the step that the clock has timed, whole batch unless said otherwise."""
        parts = self._clock.seconds()
        seconds = sum(parts.values())
        return {
            "seconds": seconds,
            **{f"{part}_seconds": value for part, value in parts.items()},
            "samples_per_second": len(batch.lengths) / seconds,
            "source_tokens_per_second": batch.source_tokens / seconds,
            "target_tokens_per_second": batch.target_tokens / seconds,
            **self._rates(batch, seconds),
            "peak_memory_gib": peak_memory_gib(self._world.device),
        }

    def _count_energy(self, step: int) -> None:
        """Add what all devices used since the last step; a collective, also after a failure."""
        mine = self._energy.joules()
        joules, unread = self._world.sum(mine or 0.0, float(mine is None))
        if self.joules is None:
            return
        if unread:
            self.joules = None
            text = f"unknown from step {step} on: {unread:.0f} of {self._world.size} meters failed"
            self._recorder.describe("energy", text)
        else:
            self.joules += joules

    def _emissions(self) -> dict[str, float]:
        """Energy and CO2 of the run so far; nothing where a part of it is unknown."""
        if self.joules is None:
            return {}
        return carbon(self.joules, self._settings.carbon_intensity)

    def _rates(self, batch: StepBatch, seconds: float) -> dict[str, float]:
        """Operations a second; only LOCOST's are counted."""
        if self._architecture is None:
            return {}
        flops = batch_flops(self._architecture, batch.lengths, batch.longest)
        rate = flops / seconds / self._world.size
        return {
            "tflops_per_process": rate / 1e12,
            **({"mfu": rate / self._peak} if self._peak else {}),
        }


def _peak_flops(device: torch.device) -> float | None:
    return peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
