"""Time and memory of work in this process, on CPU or GPU."""

import ctypes
import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.common.units import GIB

STATUS = Path("/proc/self/status")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""


@dataclass(frozen=True)
class Times:
    """Seconds of one run."""

    wall_s: float
    cpu_s: float
    """All threads of the process together."""


class Peak:
    """Peak memory since construction, above what was held then.

    On a GPU the memory that torch allocated; on a CPU the resident set, whose high-water mark is
    reset. Modules and inputs that must not count have to be built and touched before.
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
        """Peak bytes above those held at construction."""
        return self.total_bytes() - self.before

    def total_bytes(self) -> int:
        """Peak bytes in total."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _status_bytes("VmHWM") if self.resets else _high_water_mark()


def peak_memory_gib(device: torch.device) -> float:
    """Peak GiB of this process: of GPU memory since the last reset, or of its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    return _high_water_mark() / GIB


def reset_peak_memory(device: torch.device) -> None:
    """Restart the GPU's peak from here; that of the resident set stays."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def timed(run: Callable[[], object], device: torch.device) -> Times:
    """Seconds of one run, until the device has finished it."""
    synchronise(device)
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    synchronise(device)
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def best(run: Callable[[], object], device: torch.device, rounds: int, seconds: float) -> Times:
    """Minimum over up to `rounds` runs, fewer after `seconds`; at least one."""
    times = _repeated(run, device, rounds, seconds)
    return Times(min(one.wall_s for one in times), min(one.cpu_s for one in times))


def medians(run: Callable[[], object], device: torch.device, rounds: int, seconds: float) -> Times:
    """Medians over up to `rounds` runs, fewer after `seconds`; at least one."""
    times = _repeated(run, device, rounds, seconds)
    return Times(
        statistics.median(one.wall_s for one in times),
        statistics.median(one.cpu_s for one in times),
    )


def _repeated(
    run: Callable[[], object], device: torch.device, rounds: int, seconds: float
) -> list[Times]:
    began = time.perf_counter()
    times: list[Times] = []
    while len(times) < rounds and (not times or time.perf_counter() - began < seconds):
        times.append(timed(run, device))
    return times


def median_seconds(run: Callable[[], object], device: torch.device, seconds: float = 0.4) -> float:
    """Median of the runs that fit in `seconds` (3 to 30), after one or two warm-up runs.

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
    """Wait until the device has finished; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """The name of the GPU, or of the CPU with this process's number of threads."""
    threads = "" if device.type == "cuda" else f", {torch.get_num_threads()} threads"
    return hardware_name(device) + threads


def hardware_name(device: torch.device) -> str:
    """The name of the GPU or of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return models[0] if models else "CPU"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: torch's, the CPU allocator's or cuFFT's."""
    said = ("can't allocate memory", "CUFFT_ALLOC_FAILED", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in said
    )


def limit_memory(more: int) -> None:
    """Let this process allocate at most `more` bytes from here on; beyond that allocation fails.

    So work that does not fit raises an error, instead of the system killing some process.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _status_bytes("VmData") + more
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def within_memory(more: int) -> Iterator[None]:
    """`limit_memory` for what is done inside."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(more)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status_bytes(name: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _high_water_mark() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _reset_high_water_mark() -> bool:
    """Whether the kernel reset it: some sandboxes lack the file."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def return_free_memory() -> None:
    """Return freed pages to the system: a later peak would reuse them unseen, or add to them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def keep_no_freed_arrays() -> None:
    """From here on, return each array of 8 MiB or more to the system as soon as it is freed.

    Otherwise the C library keeps some for reuse, how many differs from run to run. It costs time:
    new pages are cleared again, so the smaller arrays of each decoding step are kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        for threshold in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(threshold, 8 << 20)
