"""What a step costs: where its time goes, operations, memory, energy."""

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from pipeline.benchmarking.flops import decoder_flops, encoder_flops, peak_flops
from pipeline.config import TrainConfig
from pipeline.data.batches import StepBatch
from pipeline.distributed import World
from pipeline.model import LocostConfig
from pipeline.models import ModelConfig

JOULES_PER_KWH = 3.6e6
GIB = 2**30


class StepClock:
    """Seconds of a step's parts. On a GPU the device's own events are read, without waiting for it
    between the parts."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.start()

    def start(self) -> None:
        """Begin a step."""
        self._marks: list[tuple[str, float | torch.cuda.Event]] = [("", self._now())]

    def lap(self, part: str) -> None:
        """What was done since the last mark belongs to `part`."""
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
    Parts and formulas are those of pipeline/benchmarking/flops.py.
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


def peak_memory(device: torch.device) -> float:
    """GiB this process held at most: of the GPU's memory, or of the machine's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def reset_peak_memory(device: torch.device) -> None:
    """Count a GPU's peak from here on; a machine's cannot be set back."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


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
    except Exception as error:  # NVMLError is no subclass of anything known without the package
        print(f"energy is not measured: {error}", file=sys.stderr)
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


class EnergyMeter:
    """Joules of this process's device since the meter was made; 0 where none is measured."""

    def __init__(self, device: torch.device) -> None:
        self._read = energy_reader(device)
        self._last = self._read() if self._read else 0.0

    @property
    def measures(self) -> bool:
        """Whether there is anything to read."""
        return self._read is not None

    def joules(self) -> float:
        """Joules since the last call."""
        if self._read is None:
            return 0.0
        before, self._last = self._last, self._read()
        return self._last - before


def carbon(joules: float, grams_per_kwh: float) -> dict[str, float]:
    """Energy in kWh and its emissions in kg of CO2."""
    kwh = joules / JOULES_PER_KWH
    return {"energy_kwh": kwh, "carbon_kg": kwh * grams_per_kwh / 1e3}


class Costs:
    """What every step of a run costs, for the metrics; every process asks after every step."""

    def __init__(
        self, settings: TrainConfig, architecture: ModelConfig, world: World, joules: float
    ) -> None:
        self._settings, self._world = settings, world
        self._architecture = architecture if isinstance(architecture, LocostConfig) else None
        self.clock = StepClock(world.device)
        self.joules = joules
        """Of all devices since the run's beginning, if they can be read."""
        self._energy = EnergyMeter(world.device)
        self._measured = world.any(self._energy.measures)
        self._peak = settings.peak_tflops * 1e12 or _peak_flops(world.device)

    def describe(self) -> str:
        """How the figures are to be read."""
        peak = f"{self._peak / 1e12:.0f} TFLOP/s" if self._peak else "an unknown peak (peak_tflops)"
        energy = "by NVML" if self._measured else "not measured: no device with a meter"
        return (
            "tflops_per_process: operations of forward and backward (3 x forward, real tokens "
            f"only) over the step's time; mfu: against {peak}. energy: {energy}"
        )

    def of(self, batch: StepBatch) -> dict[str, float]:
        """The figures of the step that the clock has timed, whole batch unless said otherwise."""
        parts = self.clock.seconds()
        seconds = sum(parts.values())
        if self._measured:
            self.joules += self._world.sum(self._energy.joules())[0]
        return {
            "seconds": seconds,
            **{f"{part}_seconds": value for part, value in parts.items()},
            "samples_per_second": len(batch.lengths) / seconds,
            "source_tokens_per_second": batch.source_tokens / seconds,
            "target_tokens_per_second": batch.target_tokens / seconds,
            **self._rates(batch, seconds),
            "peak_memory_gib": peak_memory(self._world.device),
            **(carbon(self.joules, self._settings.carbon_intensity) if self._measured else {}),
        }

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
