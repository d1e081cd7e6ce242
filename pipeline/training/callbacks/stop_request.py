"""Requests to stop a run, honoured at the end of the step: saved, to be resumed later."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pipeline.config import seconds
from pipeline.distributed.launcher_environment import deepspeed_launchers
from pipeline.training.callbacks.base import Callback
from pipeline.training.state import TrainingState

STOP_FILE = "STOP"  # created in the run folder by users


class StopRequest(Callback):
    """A signal, the stop file RUN/STOP, or the end of the time budget `stop_after` (19h30m).

    The signals are SIGTERM, SIGINT, SIGUSR1 and SIGUSR2; a second SIGINT interrupts at once. The
    budget counts from the start of the process. Rank 0 looks for the file. A killed `deepspeed`
    command leaves its workers running: they stop too.
    """

    def __init__(self, stop_after: str | None = None) -> None:
        self.budget = stop_after
        self.deadline = (
            time.monotonic() - process_age() + seconds(stop_after) if stop_after else float("inf")
        )
        self.signal: signal.Signals | None = None
        self._interruptible = False
        self.rank, self.file = 0, Path(STOP_FILE)
        self._launchers = deepspeed_launchers()

    def on_fit_start(self, state: TrainingState) -> None:
        self.rank, self.file = state.world.rank, state.folder / STOP_FILE
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._note)

    @property
    def reason(self) -> str | None:
        """Why this rank wants to stop, or None."""
        if self.signal is not None:
            return self.signal.name
        if time.monotonic() >= self.deadline:
            return f"--train.stop_after {self.budget} is over"
        if self._launchers and deepspeed_launchers() != self._launchers:
            return "the deepspeed command that started it has ended"
        if self.rank == 0 and self.file.exists():
            return f"stop file {self.file}"
        return None

    def wants_stop(self) -> bool:
        return self.reason is not None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A context that a stop signal leaves at once; for work that may be lost."""
        self._interruptible = True
        try:
            if self.signal is None:
                yield
        except _Interrupted:
            pass
        finally:
            self._interruptible = False

    def on_stop(self, state: TrainingState) -> None:
        """Say why, and remove the stop file."""
        if reason := self.reason:
            print(
                f"stopped after {state.step} steps: {reason} (rank {self.rank}); saved, the same "
                "command resumes",
                flush=True,
            )
        if self.rank == 0:
            self.file.unlink(missing_ok=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        if self._interruptible:
            self._interruptible = False
            raise _Interrupted


class _Interrupted(BaseException):
    """A stop signal came in an interruptible context."""


def process_age() -> float:
    """Seconds since this process was started, imports included (Linux: proc_pid_stat(5))."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # after boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
