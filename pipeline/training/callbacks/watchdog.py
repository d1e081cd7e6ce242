"""A process that hangs ends the job, and says where it hung."""

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

from pipeline.distributed.launcher_environment import host_name
from pipeline.distributed.world import HANGS
from pipeline.training.callbacks.base import Callback
from pipeline.training.state import TrainingState


class Watchdog(Callback):
    """Ends this process when nothing was done for `timeout` seconds; never with 0.

    The stacks of all its threads go to stderr and to RUN/health/stack-rankN.txt; the launcher ends
    the other processes. Those wait for the one that hangs, in a later phase than its own, so the
    rank to blame is the first to run out of time, and the phase that it names is the earliest.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout, self.rank, self.file = timeout, 0, Path()
        self.phase = "start"
        self.last = time.monotonic()
        self.stopped = threading.Event()

    def on_fit_start(self, state: TrainingState) -> None:
        self.rank = state.world.rank
        self.file = state.folder / "health" / f"stack-rank{self.rank}.txt"
        self.last = time.monotonic()
        if self.timeout:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def on_engine_ready(self, state: TrainingState) -> None:
        state.engine.module.encoder.register_forward_hook(lambda *_: self._beat())

    def on_phase(self, phase: str) -> None:
        self.phase = phase
        self._beat()

    def close(self) -> None:
        self.stopped.set()

    def _beat(self) -> None:
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
            f"(train.hang_timeout) since {self.phase}; the first rank to say so holds up the "
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
