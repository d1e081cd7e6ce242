"""Requests to stop a run, honoured at the next step's end: saved, and to be gone on with."""

import os
import signal
import time
from pathlib import Path
from types import FrameType

from pipeline.config import seconds

CONTINUE_LATER = 85  # exit status of a run that was stopped and can be gone on with
STOP_FILE = "STOP"  # made in the run folder by whoever wants the run to stop


class StopRequest:
    """A signal, the stop file `run`/STOP, or the end of the time budget `stop_after` (19h30m).

    The signals are SIGTERM, SIGINT, SIGUSR1 and SIGUSR2; a second SIGINT interrupts at once. The
    budget counts from the process's start. Rank 0 looks for the file.
    """

    def __init__(self, run: Path, rank: int, stop_after: str | None = None) -> None:
        self.rank = rank
        self.file = run / STOP_FILE
        self.budget = stop_after
        self.deadline = (
            time.monotonic() - process_age() + seconds(stop_after) if stop_after else float("inf")
        )
        self.signal: signal.Signals | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._note)

    @property
    def reason(self) -> str | None:
        """Why this process wants to stop, or None; the others are to be asked too."""
        if self.signal is not None:
            return self.signal.name
        if time.monotonic() >= self.deadline:
            return f"--train.stop_after {self.budget} is over"
        if self.rank == 0 and self.file.exists():
            return f"stop file {self.file}"
        return None

    def honoured(self, step: int) -> None:
        """Say why the run stops after `step` updates, and remove the stop file: all is saved."""
        if reason := self.reason:
            print(f"stopped after {step} steps: {reason} (rank {self.rank})", flush=True)
        if self.rank == 0:
            self.file.unlink(missing_ok=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)


def process_age() -> float:
    """Seconds since this process was started, imports included (Linux: proc_pid_stat(5))."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # after boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
