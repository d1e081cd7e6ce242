"""Progress of long work: a bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
LINE_EVERY_SECONDS = 15.0


class Progress:
    """Counts units of work; `update` draws a bar on a terminal, else prints a line every 15 s.

    Bytes, of unit "B", are shown as MB.
    """

    def __init__(self, description: str, total: int | None, unit: str, initial: int = 0) -> None:
        self.bar = tqdm(
            desc=description,
            total=total,
            unit=unit,
            initial=initial,
            unit_scale=unit == "B",
            disable=None,  # tqdm's own rule: off where standard error is not a terminal
            dynamic_ncols=True,
        )
        self.description, self.total, self.unit = description, total, unit
        self.done, self.initial = initial, initial
        self.started = self.last_line = time.monotonic()
        self.note = ""

    def update(self, amount: int = 1, note: str = "") -> None:
        """Count `amount` more units; `note` is shown after the rate."""
        self.done += amount
        self.note = note
        if self.bar.disable:
            if time.monotonic() - self.last_line >= LINE_EVERY_SECONDS:
                self._line()
            return
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(amount)

    def close(self) -> None:
        """Draw the last state."""
        if self.bar.disable:
            self._line()
        self.bar.close()

    def _line(self) -> None:
        self.last_line = time.monotonic()
        rate = (self.done - self.initial) / max(self.last_line - self.started, 1e-9)
        scale, unit = (1e6, "MB") if self.unit == "B" else (1, self.unit)
        total = f"/{self.total / scale:.0f}" if self.total else ""
        parts = [f"{self.done / scale:.0f}{total} {unit}", f"{rate / scale:.1f} {unit}/s"]
        if self.total and rate > 0:
            parts.append(f"{(self.total - self.done) / rate:.0f} s left")
        if self.note:
            parts.append(self.note)
        print(f"{self.description}: {', '.join(parts)}", file=sys.stderr, flush=True)


def progress(
    items: Iterable[Item], total: int | None, description: str, unit: str
) -> Iterator[Item]:
    """Yield the items unchanged, showing how many have passed, their rate and the time left."""
    bar = Progress(description, total, unit)
    try:
        for item in items:
            yield item
            bar.update()
    finally:
        bar.close()
