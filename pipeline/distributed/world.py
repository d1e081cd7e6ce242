"""The processes of a run: how they start, and what they tell each other."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from pipeline.common.command_line import described
from pipeline.distributed.launcher_environment import (
    check_no_gpus,
    host_name,
    meeting_point,
    place_from_environment,
)
from pipeline.distributed.rendezvous import TIMEOUT, JoinFailed, join

__all__ = ["JoinFailed", "World", "free_port", "place_from_environment", "start", "stop"]

FFT_PLANS = 64  # kept on a GPU
JOIN_TIMEOUT = 300.0  # seconds that the processes wait for each other
HANGS = 70  # exit status where one of them does not come, or does not move for too long
T = TypeVar("T")


class RunFailed(Exception):
    """The run cannot continue; the message is one line for the user. Raised on all processes."""


@dataclass(frozen=True)
class World:
    """One process's place among all: `rank` of `size`, `local_rank` on its host, its `device`.

    With sequence parallelism each `sequence_size` neighbouring ranks share every document: groups
    of them are what each process is without it.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    sequence_size: int = field(default=1, kw_only=True)

    def in_sequences(self, size: int) -> "World":
        """The same processes, each `size` of them sharing documents; `size` divides them."""
        return replace(self, sequence_size=size)

    @property
    def data_rank(self) -> int:
        """The number of this process's group: which micro-batches it gets."""
        return self.rank // self.sequence_size

    @property
    def data_size(self) -> int:
        """How many groups there are, each with micro-batches of its own."""
        return self.size // self.sequence_size

    @property
    def sequence_rank(self) -> int:
        """This process's place in its group: which part of each document it has."""
        return self.rank % self.sequence_size

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes the files that exist once."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            dist.barrier()

    def sum(self, *values: float | torch.Tensor) -> list[float]:
        """The sum of each number over all processes, in float64; the host waits for them once."""
        numbers = [torch.as_tensor(value, dtype=torch.float64) for value in values]
        total = torch.stack([number.to(self.device, non_blocking=True) for number in numbers])
        if self.size > 1:
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

    def from_main(self, action: Callable[[], T], *errors: type[Exception]) -> T:
        """What `action` returns on rank 0, on every process; a collective.

        Where it raises one of `errors` there, ValueError with one line on all of them.
        """
        if self.size == 1:
            return action()
        result, problem = None, None
        if self.is_main:
            try:
                result = action()
            except errors as error:
                problem = described(error)
        result, problem = self.broadcast((result, problem))
        if problem is not None:
            raise ValueError(problem)
        return cast(T, result)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in rank order, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def attempt(
        self, action: Callable[[], T], *errors: type[Exception]
    ) -> tuple[T | None, list[str]]:
        """What `action` returns here, and one line for each process it failed on; a collective.

        Of `errors`, that is; the line names rank and host unless it failed on all of them.
        """
        result, problem = None, None
        try:
            result = action()
        except errors as error:
            problem = (f"rank {self.rank} on {host_name()}: ", described(error))
        met = [one for one in self.gather(problem) if one]
        return result, [text if len(met) == self.size else place + text for place, text in met]

    def on_all(
        self,
        action: Callable[[], T],
        *errors: type[Exception],
        failure: Callable[[str], Exception] = ValueError,
    ) -> T:
        """What `action` returns here; a collective.

        Where it raises one of `errors` on any process, `failure` is raised on all of them, made
        from the distinct lines that `attempt` gives, joined by semicolons.
        """
        result, problems = self.attempt(action, *errors)
        if problems:
            raise failure("; ".join(dict.fromkeys(problems)))
        return cast(T, result)


def start(timeout: float = JOIN_TIMEOUT) -> World:
    """Find this process's place, join the others (NCCL on GPUs, gloo on CPUs), pick the device.

    Raises ValueError where the launcher did not set what is needed, JoinFailed where not all are
    there after `timeout` seconds.
    """
    rank, size, local_rank = place_from_environment(os.environ)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cpu")
    if on_gpu:  # srun may show every task its own GPU alone, which is then number 0
        device = torch.device("cuda", local_rank if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
        # A plan is kept for every shape of an FFT; thousands of shapes would take gigabytes.
        torch.backends.cuda.cufft_plan_cache[device.index].max_size = FFT_PLANS
        # Its attention plans every new shape anew, and is not deterministic.
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        check_no_gpus(os.environ)
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed would guess, with a warning
    world = World(rank, size, local_rank, device)
    if dist.is_initialized():
        return world
    index = device.index if on_gpu else local_rank  # DeepSpeed takes it for the device's
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(index))
    here = [host_name(), sorted(os.sched_getaffinity(0))]
    store: dist.Store = dist.HashStore()
    places = [here]
    if size > 1:
        address, port = meeting_point(os.environ)
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
        store, places = join(rank, size, address, port, here, timeout)
    if not on_gpu and "OMP_NUM_THREADS" not in os.environ:  # those on the same cores share them
        torch.set_num_threads(max(1, len(here[1]) // places.count(here)))
    with _in_time(
        timeout,
        f"error: rank {rank} on {here[0]}: no connection with all others within {timeout:g} s; "
        "name the network that joins the nodes (GLOO_SOCKET_IFNAME, on GPUs NCCL_SOCKET_IFNAME)",
    ):
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT
        )
        world.barrier()
    return world


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


@contextmanager
def _in_time(timeout: float, line: str) -> Iterator[None]:
    """End this process with a line where what is done inside takes longer."""

    def end() -> None:
        print(line, file=sys.stderr, flush=True)
        os._exit(HANGS)

    timer = threading.Timer(timeout, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
