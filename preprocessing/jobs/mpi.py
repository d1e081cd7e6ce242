"""The MPI ranks of one job: rank 0 coordinates and works, the others are workers.

Only rank 0 touches the leases. A worker sends it one small message whenever it needs an item or has
read some more; rank 0 checks for messages between two documents of its own item, so no core is idle
and no rank busy-waits in a collective call.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from preprocessing.jobs.leases import Leases

POLL_SECONDS = 0.02
LOOK_SECONDS = 1.0  # between two attempts to lease an item after one that found none
REPORT_SECONDS = 1.0
TO_ROOT, FROM_ROOT = 1, 2  # message tags


class Report(NamedTuple):
    """A rank's progress: documents and input bytes of its item; `finished`: it needs another."""

    item: int | None
    documents: int = 0
    position: int = 0
    finished: bool = False


Make = Callable[[int, Callable[[int, int], None]], None]
"""`make(item, progress)` makes one item, calling `progress(documents, position)` per document."""
Show = Callable[[Report], None]


class MpiWorld:
    """This process's rank among all; without mpirun, rank 0 of 1, and mpi4py is not loaded.

    Raises ValueError where several tasks were started but MPI does not connect them, as each would
    then do all the work.
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._communicator: Any = None
        names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]  # set by mpirun
        if "SLURM_STEP_ID" in os.environ:
            names.append("SLURM_NTASKS")
        started = max(int(os.environ.get(name, 1)) for name in names)
        if started == 1:
            return
        world = comm_world()
        if world is not None:
            self._communicator, self.rank, self.size = world, world.Get_rank(), world.Get_size()
        if self.size == 1:
            raise ValueError(
                f"{started} tasks were started, but MPI does not connect them; start them with "
                f"`mpirun --bind-to none -n {started} python -m preprocessing...` inside the job"
            )

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        return value if self._communicator is None else self._communicator.bcast(value)

    def send_report(self, report: Report) -> None:
        """On a worker: send progress to rank 0."""
        self._communicator.send(tuple(report), dest=0, tag=TO_ROOT)

    def reports(self) -> Iterator[tuple[int, Report]]:
        """On rank 0: (rank, report) of every pending message."""
        if self._communicator is None:
            return
        from mpi4py import MPI

        status = MPI.Status()
        while self._communicator.iprobe(tag=TO_ROOT, status=status):
            rank = status.Get_source()
            yield rank, Report(*self._communicator.recv(source=rank, tag=TO_ROOT))

    def send_item(self, rank: int, item: int | None) -> None:
        """On rank 0: answer a worker that finished; None: there is no more work."""
        self._communicator.send(item, dest=rank, tag=FROM_ROOT)

    def receive_item(self) -> int | None:
        """On a worker: the next item, None if there is no more work."""
        while not self._communicator.iprobe(source=0, tag=FROM_ROOT):
            time.sleep(POLL_SECONDS)  # a blocking receive would keep a core busy
        return self._communicator.recv(source=0, tag=FROM_ROOT)


def run_as_coordinator(world: MpiWorld, leases: Leases, make: Make, show: Show) -> None:
    """Rank 0: make items and hand them out until all are done, by this job or by others.

    `show` gets the reports of every rank.
    """
    idle: list[int] = []  # workers that need an item
    look_at = 0.0

    def take() -> int | None:
        """An item to make, unless there was none a moment ago."""
        nonlocal look_at
        item = leases.take() if time.monotonic() >= look_at else None
        if item is None and time.monotonic() >= look_at:
            look_at = time.monotonic() + LOOK_SECONDS
        return item

    def serve_workers() -> None:
        for rank, report in world.reports():
            show(report)
            if report.finished:
                idle.append(rank)
                if report.item is not None:
                    leases.finish(report.item)
        while idle and (item := take()) is not None:
            world.send_item(idle.pop(0), item)

    def make_here(item: int) -> None:
        def progress(documents: int, position: int) -> None:
            show(Report(item, documents, position))
            serve_workers()

        make(item, progress)
        leases.finish(item)

    while not leases.are_all_done:
        serve_workers()
        if (item := take()) is not None:
            make_here(item)
        else:
            time.sleep(POLL_SECONDS)
    for _ in range(world.size - 1):
        while not idle:
            serve_workers()
            time.sleep(POLL_SECONDS)
        world.send_item(idle.pop(), None)


def run_as_worker(world: MpiWorld, make: Make) -> None:
    """Another rank: make the items that rank 0 hands out."""
    finished = Report(None, finished=True)
    while True:
        world.send_report(finished)
        item = world.receive_item()
        if item is None:
            return
        finished = _make_and_report(world, make, item)


def _make_and_report(world: MpiWorld, make: Make, item: int) -> Report:
    """Make an item, reporting progress every REPORT_SECONDS; returns the final report."""
    latest = Report(item)
    report_at = time.monotonic() + REPORT_SECONDS

    def progress(documents: int, position: int) -> None:
        nonlocal latest, report_at
        latest = Report(item, documents, position)
        if time.monotonic() >= report_at:
            world.send_report(latest)
            report_at = time.monotonic() + REPORT_SECONDS

    make(item, progress)
    return latest._replace(finished=True)


def comm_world() -> Any:
    """mpi4py's COMM_WORLD, or None without a working MPI."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD
