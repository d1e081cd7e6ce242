"""The processes of a run. The only module that asks torch.distributed anything."""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

FFT_PLANS = 64  # kept on a GPU
# Saves and evaluations may keep one rank busy for long; the watchdog must not end the others.
TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True)
class World:
    """One process's place among all: `rank` of `size`, `local_rank` on its host, its `device`."""

    rank: int
    size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes the files that exist once."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            dist.barrier()

    def sum(self, *values: float) -> list[float]:
        """The sum of each value over all processes, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one process."""
        return self.sum(float(flag))[0] > 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in rank order, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def place_from_environment(environment: dict[str, str]) -> tuple[int, int, int]:
    """(rank, world size, local rank) as the launcher states them.

    deepspeed and torchrun set RANK, WORLD_SIZE and LOCAL_RANK; srun sets SLURM_*; mpirun sets
    OMPI_COMM_WORLD_*; with none of them this is the only process.
    """
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if all(name in environment for name in names):
            rank, size, local_rank = (int(environment[name]) for name in names)
            if not 0 <= rank < size:
                raise ValueError(
                    f"{names[0]}={rank} and {names[1]}={size} contradict each other; "
                    "unset both or start through one launcher"
                )
            return rank, size, local_rank
    return 0, 1, 0


def start() -> World:
    """Find this process's place, join the others (NCCL on GPUs, gloo on CPUs), pick the device."""
    rank, size, local_rank = place_from_environment(dict(os.environ))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        # A plan is kept for every shape of an FFT; thousands of shapes would take gigabytes.
        torch.backends.cuda.cufft_plan_cache[local_rank].max_size = FFT_PLANS
    else:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed would guess, with a warning
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(_thread_share())
    if size > 1:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise ValueError(
                f"{size} processes but {' and '.join(missing)} not set; start them with "
                "`deepspeed`, or export the address and port of rank 0"
            )
    else:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(free_port()))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(local_rank))
    if not dist.is_initialized():
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", rank=rank, world_size=size, timeout=TIMEOUT
        )
    return World(rank, size, local_rank, device)


def stop() -> None:
    """Leave the process group, all processes together; call it once, last.

    One that leaves while another still joins would take the connection from under it.
    """
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def free_port() -> int:
    """A TCP port of this host that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _thread_share() -> int:
    """CPU threads for this process: the cores over the processes on this host."""
    local = int(os.environ.get("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(1, len(os.sched_getaffinity(0)) // local)
