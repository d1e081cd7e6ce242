"""Seconds and bytes of a piece of work in this process, on CPU or GPU."""

import ctypes
import gc
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

GIB = 1024**3
STATUS = Path("/proc/self/status")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""


@dataclass(frozen=True)
class Times:
    """Seconds of one run."""

    wall_s: float
    cpu_s: float
    """Of all the process's threads together."""


class Peak:
    """The most memory held since its making, over what was held then.

    On a GPU what torch allocated; on a CPU the resident set, whose high-water mark the kernel is
    asked to set back. What is measured against (modules, inputs) must be built and touched before.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)
        else:
            return_free_memory()
            self.resets = _reset_high_water_mark()
            self.before = _status_bytes("VmRSS") if self.resets else _high_water_mark()

    def bytes(self) -> int:
        """Bytes over those held at the start."""
        return self.total_bytes() - self.before

    def total_bytes(self) -> int:
        """Bytes in all, those held at the start included."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _status_bytes("VmHWM") if self.resets else _high_water_mark()


def timed(run: Callable[[], object], device: torch.device) -> Times:
    """Seconds of one run, to its very end on the device."""
    synchronise(device)
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    synchronise(device)
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def best(run: Callable[[], object], device: torch.device, rounds: int, seconds: float) -> Times:
    """The least of up to `rounds` runs, fewer once `seconds` are spent; at least one."""
    began = time.perf_counter()
    times: list[Times] = []
    while len(times) < rounds and (not times or time.perf_counter() - began < seconds):
        times.append(timed(run, device))
    return Times(min(one.wall_s for one in times), min(one.cpu_s for one in times))


def median_seconds(run: Callable[[], object], device: torch.device, seconds: float = 0.4) -> float:
    """Median of the runs that fit in `seconds` (3 to 30), after one or two to warm up.

    On a GPU each is timed by the device's own clock, between two events.
    """
    first = timed(run, device).wall_s
    first = timed(run, device).wall_s if first < seconds else first
    rounds = min(30, max(3, int(seconds / max(first, 1e-6))))
    if device.type != "cuda":
        return statistics.median(timed(run, device).wall_s for _ in range(rounds))
    events = [
        [torch.cuda.Event(enable_timing=True) for _ in range(rounds)] for _ in ("start", "end")
    ]
    for start, end in zip(*events, strict=True):
        start.record()
        run()
        end.record()
    synchronise(device)
    pairs = zip(*events, strict=True)
    return statistics.median(start.elapsed_time(end) for start, end in pairs) / 1000


def synchronise(device: torch.device) -> None:
    """Wait for the device; a CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """What the figures were taken on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{models[0] if models else 'CPU'}, {torch.get_num_threads()} threads"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that an allocation failed: torch's, the CPU allocator's or cuFFT's."""
    said = ("can't allocate memory", "CUFFT_ALLOC_FAILED", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in said
    )


def limit_memory(more: int) -> None:
    """Let this process hold at most `more` bytes over what it does: beyond, allocation fails.

    So work that does not fit ends in an error of its own, not in the system ending some process.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _status_bytes("VmData") + more
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _status_bytes(name: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _high_water_mark() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _reset_high_water_mark() -> bool:
    """Whether the kernel did: some sandboxes have no such file."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def return_free_memory() -> None:
    """Have the C library give freed pages back: a later peak would hide in them, or add to them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def keep_no_freed_arrays() -> None:
    """Have the C library give back each array of 8 MiB or more when it is freed, from here on.

    Otherwise it keeps many for later ones, how many differs from run to run. Costs time: pages that
    are taken anew are cleared anew, so the smaller arrays of each step of decoding are kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        for threshold in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(threshold, 8 << 20)
