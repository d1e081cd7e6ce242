"""The processes of one job: rank 0 hands out the items as ranks become free.

Only rank 0 touches the claims. The others send it one small message whenever they want an item or
have read some more; it looks for them between two documents of its own, so no core is idle and
nobody spins in a collective call.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from preprocessing.claims import Claims

POLL_SECONDS = 0.02
LOOK_SECONDS = 1.0  # between two looks at what other jobs hold
REPORT_SECONDS = 1.0
TO_ROOT, FROM_ROOT = 1, 2  # message tags


class Report(NamedTuple):
    """How far a rank is: documents and input bytes of its item; `finished`: it wants the next."""

    item: int | None
    documents: int = 0
    position: int = 0
    finished: bool = False


Make = Callable[[int, Callable[[int, int], None]], None]
Show = Callable[[Report], None]


class Ranks:
    """This process's place among all; alone, rank 0 of 1, and mpi4py is not loaded.

    Raises ValueError where several tasks were started but do not see each other through MPI, as
    each would then do everything.
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._world: Any = None
        names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]  # as mpirun says it
        if "SLURM_STEP_ID" in os.environ:
            names.append("SLURM_NTASKS")
        started = max(int(os.environ.get(name, 1)) for name in names)
        if started == 1:
            return
        world = mpi_world()
        if world is not None:
            self._world, self.rank, self.size = world, world.Get_rank(), world.Get_size()
        if self.size == 1:
            raise ValueError(
                f"{started} tasks were started, but MPI joins only 1; start them with "
                f"`mpirun --bind-to none -n {started} python -m preprocessing...` inside the job"
            )

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        return value if self._world is None else self._world.bcast(value)

    def report(self, report: Report) -> None:
        """Tell rank 0."""
        self._world.send(tuple(report), dest=0, tag=TO_ROOT)

    def reports(self) -> Iterator[tuple[int, Report]]:
        """On rank 0: (rank, report) of every message that waits."""
        if self._world is None:
            return
        from mpi4py import MPI

        status = MPI.Status()
        while self._world.iprobe(tag=TO_ROOT, status=status):
            rank = status.Get_source()
            yield rank, Report(*self._world.recv(source=rank, tag=TO_ROOT))

    def hand_out(self, rank: int, item: int | None) -> None:
        """On rank 0: answer a rank that finished; None sends it home."""
        self._world.send(item, dest=rank, tag=FROM_ROOT)

    def next_item(self) -> int | None:
        """On another rank: what rank 0 hands out."""
        while not self._world.iprobe(source=0, tag=FROM_ROOT):
            time.sleep(POLL_SECONDS)  # a blocking receive would keep a core busy
        return self._world.recv(source=0, tag=FROM_ROOT)


def lead(ranks: Ranks, claims: Claims, make: Make, show: Show) -> None:
    """Rank 0: make items and hand them out until all are done, by this job or by others.

    `make(item, progress)` makes one and calls `progress(documents, position)` after each document;
    `show` gets what every rank reports.
    """
    waiting: list[int] = []
    look_at = 0.0

    def take() -> int | None:
        """An item to make, unless there was none a moment ago."""
        nonlocal look_at
        item = claims.take() if time.monotonic() >= look_at else None
        if item is None and time.monotonic() >= look_at:
            look_at = time.monotonic() + LOOK_SECONDS
        return item

    def serve() -> None:
        for rank, report in ranks.reports():
            show(report)
            if report.finished:
                waiting.append(rank)
                if report.item is not None:
                    claims.finish(report.item)
        while waiting and (item := take()) is not None:
            ranks.hand_out(waiting.pop(0), item)

    def made(item: int) -> None:
        def progress(documents: int, position: int) -> None:
            show(Report(item, documents, position))
            serve()

        make(item, progress)
        claims.finish(item)

    while claims.missing:
        serve()
        if (item := take()) is not None:
            made(item)
        else:
            time.sleep(POLL_SECONDS)
    for _ in range(ranks.size - 1):
        while not waiting:
            serve()
            time.sleep(POLL_SECONDS)
        ranks.hand_out(waiting.pop(), None)


def follow(ranks: Ranks, make: Make) -> None:
    """Another rank: make what rank 0 hands out."""
    done = Report(None, finished=True)
    while True:
        ranks.report(done)
        item = ranks.next_item()
        if item is None:
            return
        done = made(ranks, make, item)


def made(ranks: Ranks, make: Make, item: int) -> Report:
    """Make an item, telling rank 0 about it now and then; what to tell it at the end."""
    latest = Report(item)
    report_at = time.monotonic() + REPORT_SECONDS

    def progress(documents: int, position: int) -> None:
        nonlocal latest, report_at
        latest = Report(item, documents, position)
        if time.monotonic() >= report_at:
            ranks.report(latest)
            report_at = time.monotonic() + REPORT_SECONDS

    make(item, progress)
    return latest._replace(finished=True)


def mpi_world() -> Any:
    """mpi4py's COMM_WORLD, or None without a working MPI."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD
