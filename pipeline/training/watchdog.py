"""A process that no longer moves ends the job, and says where it stood."""

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

from pipeline.distributed import HANGS
from pipeline.launch import host_name


class Watchdog:
    """Ends this process `timeout` seconds after its last `beat`, inside a `with`; never with 0.

    The stacks of all its threads go to stderr and to `run`/health/stack-rankN.txt; the launcher
    ends the other processes. These wait for the one that hangs, at a later beat than its own, so
    that the one to blame is the first to run out of time, and the place it names is the earliest.
    """

    def __init__(self, timeout: float, run: Path, rank: int) -> None:
        self.timeout, self.rank = timeout, rank
        self.file = run / "health" / f"stack-rank{rank}.txt"
        self.place = "start"
        self.last = time.monotonic()
        self.stopped = threading.Event()

    def __enter__(self) -> "Watchdog":
        if self.timeout:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()

    def beat(self, place: str | None = None) -> None:
        """The process moves: it now begins what `place` names (nothing new: None)."""
        self.place = place or self.place
        self.last = time.monotonic()

    def _watch(self) -> None:
        while (left := self.last + self.timeout - time.monotonic()) > 0:
            # Should the hanging thread hold the interpreter's lock, this one never wakes up.
            faulthandler.dump_traceback_later(2 * self.timeout + 5, exit=True)
            if self.stopped.wait(left):
                faulthandler.cancel_dump_traceback_later()
                return
        line = (
            f"error: rank {self.rank} on {host_name()} has not moved for {self.timeout:g} s "
            f"(train.hang_timeout) since {self.place}; the first rank to say so holds up the "
            f"others; its stack is in {self.file}"
        )
        print(line, file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr)
        try:  # the file system may be what hangs: the process ends all the same
            threading.Thread(target=self._write, args=(line,), daemon=True).start()
            time.sleep(1)
        finally:
            os._exit(HANGS)

    def _write(self, line: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("w") as file:
            print(line, file=file, flush=True)
            faulthandler.dump_traceback(file)
