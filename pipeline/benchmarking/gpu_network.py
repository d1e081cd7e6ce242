"""The GPU check's network section: two GPUs exchange data by NCCL, two processes by gloo.

Each process runs `main` of this file: its arguments are its rank, the backend, bytes, and a folder
in which the processes meet and where rank 0 leaves the rows.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.benchmarking.gpu_rows import Row
from pipeline.common.files import read_object, replace_json
from pipeline.common.paths import ROOT

PROCESSES = 2
MIB = 1 << 20
REPEATS = 5
TIMEOUT = 60
"""Seconds, the processes' start included."""
RESULTS = "rows.json"


def network(device: torch.device, small: bool) -> Iterator[Row]:
    """All-reduce and all-to-all of 64 MiB, each result compared with what it must be."""
    on_gpu = device.type == "cuda"
    if on_gpu and torch.cuda.device_count() < PROCESSES:
        yield {"network": "NCCL", "not run": f"{torch.cuda.device_count()} GPU, {PROCESSES} needed"}
        return
    size = MIB if small else 64 * MIB
    with TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(rank), "nccl" if on_gpu else "gloo",
                 str(size), folder],
                cwd=ROOT, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(PROCESSES)
        ]  # fmt: skip
        deadline = time.monotonic() + TIMEOUT
        try:
            printed = [one.communicate(timeout=deadline - time.monotonic())[1] for one in started]
        finally:
            for one in started:
                one.kill()
                one.wait()
        for one, text in zip(started, printed, strict=True):
            if one.returncode:
                raise RuntimeError(f"status {one.returncode}: {text.strip().splitlines()[-1:]}")
        yield from read_object(Path(folder) / RESULTS)["rows"]


def main(rank: int, backend: str, size: int, folder: Path) -> None:
    """One process's part: numbers (size / 4,) that tell who sent them."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=PROCESSES
    )
    places = torch.arange(size // 4, device=device, dtype=torch.float32) % 1024
    ours, result = places + 1000 * rank, torch.empty_like(places)

    def all_reduce() -> Tensor:
        result.copy_(ours)
        dist.all_reduce(result)
        return result

    def all_to_all() -> Tensor:
        dist.all_to_all_single(result, ours)
        return result

    part = places.chunk(PROCESSES)[rank]
    every = range(PROCESSES)
    expected = {
        "all-reduce": PROCESSES * places + 1000 * sum(every),
        "all-to-all": torch.cat([part + 1000 * other for other in every]),
    }
    rows = [
        _measured(name, operation, expected[name])
        for name, operation in (("all-reduce", all_reduce), ("all-to-all", all_to_all))
    ]
    dist.destroy_process_group()
    if rank == 0:
        labels = {"network": backend, "processes": PROCESSES, "mib": size / MIB}
        replace_json(folder / RESULTS, {"rows": [{**labels, **row} for row in rows]})


def _measured(name: str, operation: Callable[[], Tensor], expected: Tensor) -> Row:
    """Whether the result is right on every process, and the fastest of REPEATS.

    GB/s: bytes of a process's tensor over the seconds of the operation.
    """
    wrong = (operation() != expected).sum().float()
    dist.all_reduce(wrong)
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        began = time.perf_counter()
        operation()
        if expected.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return {
        "operation": name, "ms": 1000 * min(times), "gb_per_s": expected.nbytes / 1e9 / min(times),
        "passed": not wrong.item(),
    }  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
