"""Available memory."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

CGROUP_FILES = {
    2: ("", "memory.max", "memory.current"),
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""By cgroup version: folder of the controller, its files of limit and usage."""


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still allocate on the device; on a CPU within its job's limit."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    return min([machine_memory(Path("/proc/meminfo")), *job_memory(Path("/"))])


def machine_memory(meminfo: Path) -> int:
    """Bytes that the machine can provide without swapping; all its memory if that is unknown."""
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def job_memory(root: Path) -> Iterator[int]:
    """Bytes left in each control group (a Slurm job, a container) that limits this process.

    Inactive page cache counts as available. `root`: of the file system.
    """
    membership = root / "proc/self/cgroup"
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        controller, limit, used = CGROUP_FILES[1 if controllers else 2]
        top = root / "sys/fs/cgroup" / controller
        own = top / path.lstrip("/")
        for group in (own, *own.parents):
            numbers = [group / limit, group / used, group / "memory.stat"]
            if group.is_relative_to(top) and all(file.exists() for file in numbers):
                most, taken, statistics = (file.read_text() for file in numbers)
                if most.strip() != "max":
                    cache = dict(entry.split() for entry in statistics.splitlines())
                    yield int(most) - int(taken) + int(cache["inactive_file"])
