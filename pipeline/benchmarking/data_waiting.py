"""The share of its time that a training loop waits for data, on this file system or a slower one.

The loop is a pretended one: it takes its batches from `Prefetched`, as the trainer does, and
sleeps for the length of a step. It runs twice, each time with nothing of the dataset cached: as the
trainer sets the loader up, and with one read at a time and nothing read ahead.

A slower file system is a real mount (see throttled_mount), so that page cache, read-ahead and page
faults are the system's own. One rank reads; on a node, several share its link.
"""

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from pipeline.benchmarking.data_loading import Load
from pipeline.benchmarking.throttled_mount import throttled
from pipeline.data.prefetch import READS, Prefetched
from pipeline.data.shard_cache import STREAMS, ShardCache


@dataclass(frozen=True)
class FileSystem:
    """What a slower file system takes for each request, and lets pass; by default this one."""

    latency_ms: float = 0.0
    bandwidth_mb_s: float = inf

    def mounted(self, folder: Path) -> AbstractContextManager[Path]:
        """The folder there, nothing of it cached. Raises ValueError as `throttled` does."""
        if self == FileSystem():
            return nullcontext(_forgotten(folder))
        return throttled(folder, self.latency_ms / 1e3, self.bandwidth_mb_s * 1e6)


def measure(load: Load, steps: int, step_seconds: float, files: FileSystem) -> dict[str, Any]:
    """Waiting of rank 0 in `steps` steps of `step_seconds`: `as_set`, `one_by_one`, their `ratio`.

    `ratio` is the time waited for data as a share of that one by one. Raises ValueError for fewer
    than two steps, and as `FileSystem` and the trainer do.
    """
    if steps < 2:
        raise ValueError(f"--steps {steps}: waiting is measured from the second step on; give more")
    as_set = _waiting(load, steps, step_seconds, files, ahead=True)
    one_by_one = _waiting(load, steps, step_seconds, files, ahead=False)
    return {
        "step_seconds": step_seconds,
        "latency_ms": files.latency_ms,
        "bandwidth_mb_s": files.bandwidth_mb_s if files.bandwidth_mb_s < inf else None,
        "reads": READS,
        "streams": STREAMS,
        "as_set": as_set,
        "one_by_one": one_by_one,
        "ratio": as_set["waited_s"] / one_by_one["waited_s"],
    }


def _waiting(
    load: Load, steps: int, step_seconds: float, files: FileSystem, ahead: bool
) -> dict[str, float]:
    """Seconds until the first batch, seconds waited after it, their share of the time after it."""
    with files.mounted(load.data) as folder:
        batches = load.of_rank(0, folder)
        cache = ShardCache(batches.datasets, batches.order) if ahead else None
        waits = []
        with Prefetched(batches, cache, reads=READS if ahead else 1) as loader:
            for step in range(steps):
                began = time.perf_counter()
                loader.step(step)
                waits.append(time.perf_counter() - began)
                time.sleep(step_seconds)
    waited = sum(waits[1:])
    share = waited / (waited + (steps - 1) * step_seconds)
    return {"first_batch_s": waits[0], "waited_s": waited, "share": share}


def as_text(found: dict[str, Any]) -> Iterator[str]:
    """The lines that are printed."""
    throttle = [f"{found['latency_ms']:g} ms a request"] if found["latency_ms"] else []
    throttle += [f"{found['bandwidth_mb_s']:g} MB/s"] if found["bandwidth_mb_s"] else []
    where = f"throttled to {' and '.join(throttle)}" if throttle else "of this file system"
    yield f"waiting for data {where}, in steps of {found['step_seconds']:g} s:"
    for name, how in (
        ("as_set", f"{found['reads']} reads at once, {found['streams']} files read ahead"),
        ("one_by_one", "one read at a time, nothing read ahead"),
    ):
        yield (
            f"  {found[name]['share']:.1%} of the time, first batch after "
            f"{found[name]['first_batch_s']:.1f} s ({how})"
        )
    yield f"  waited after the first batch: {found['ratio']:.3f} of the time one by one"


def _forgotten(folder: Path) -> Path:
    """The folder, whose files the system has dropped from its page cache where it can."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return folder
