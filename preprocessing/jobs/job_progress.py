"""Progress of a running job, shown by rank 0: documents, MB/s, time left."""

import time
from collections.abc import Sequence

from pipeline.common.progress import Progress
from preprocessing.jobs.leases import Leases
from preprocessing.jobs.mpi import Report

DRAW_SECONDS = 0.2


class JobProgress:
    """Progress of all ranks of a job, whose items have `sizes` bytes; used in `with`.

    Shows nothing where there is nothing to read.
    """

    def __init__(self, description: str, sizes: Sequence[int], leases: Leases) -> None:
        self._sizes, self._leases = sizes, leases
        self._latest: dict[int, Report] = {}  # of items in progress here
        self._done: set[int] = set()
        self._done_bytes = self._documents = 0
        self._draw_at = 0.0
        self._started = time.monotonic()
        self._bar: Progress | None = None
        if sum(sizes) > self._bytes():
            self._bar = Progress(description, sum(sizes), "B", initial=self._bytes())

    def __enter__(self) -> "JobProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._draw(self._bar)
            self._bar.close()

    def show(self, report: Report) -> None:
        """Take a rank's report. Called for every document; redraws every DRAW_SECONDS at most."""
        if report.item is not None and report.item not in self._done:
            self._latest[report.item] = report
        if self._bar is not None and time.monotonic() >= self._draw_at:
            self._draw_at = time.monotonic() + DRAW_SECONDS
            self._draw(self._bar)

    def _draw(self, bar: Progress) -> None:
        read = self._bytes()
        documents = self._documents + sum(report.documents for report in self._latest.values())
        rate = documents / max(time.monotonic() - self._started, 1e-9)
        note = f"{documents:,} documents, {rate:,.0f} documents/s"
        bar.update(read - bar.done, note)

    def _bytes(self) -> int:
        """Bytes of the items done so far (by any job), and read of those in progress here."""
        for item in self._leases.done[len(self._done) :]:
            self._done.add(item)
            self._done_bytes += self._sizes[item]
            if report := self._latest.pop(item, None):
                self._documents += report.documents
        return self._done_bytes + sum(report.position for report in self._latest.values())
