"""What a person sees of a running job: documents, MB/s, time left, from rank 0."""

import time
from collections.abc import Sequence

from pipeline.progress import Progress
from preprocessing.claims import Claims
from preprocessing.ranks import Report

DRAW_SECONDS = 0.2


class Board:
    """The progress of all of a job's ranks in `sizes` bytes an item; used in `with`.

    Shows nothing where there is nothing to read.
    """

    def __init__(self, description: str, sizes: Sequence[int], claims: Claims) -> None:
        self._sizes, self._claims = sizes, claims
        self._latest: dict[int, Report] = {}
        self._draw_at = 0.0
        self._started = time.monotonic()
        self._bar: Progress | None = None
        if sum(sizes) > self._bytes():
            self._bar = Progress(description, sum(sizes), "B", initial=self._bytes())

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._draw(self._bar)
            self._bar.close()

    def show(self, report: Report) -> None:
        """Take a rank's report; called for every document, it draws now and then."""
        if report.item is not None:
            self._latest[report.item] = report
        if self._bar is not None and time.monotonic() >= self._draw_at:
            self._draw_at = time.monotonic() + DRAW_SECONDS
            self._draw(self._bar)

    def _draw(self, bar: Progress) -> None:
        documents = sum(report.documents for report in self._latest.values())
        rate = documents / max(time.monotonic() - self._started, 1e-9)
        note = f"{documents:,} documents, {rate:,.0f} documents/s"
        bar.update(self._bytes() - bar.done, note)

    def _bytes(self) -> int:
        """Of the items that are done, by whomever, and of those being made here."""
        done = sum(self._sizes[item] for item in self._claims.done)
        under_way = self._latest.keys() - self._claims.done
        return done + sum(self._latest[item].position for item in under_way)
