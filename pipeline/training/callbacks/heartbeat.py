"""RUN/heartbeat.json: the progress of a run, for readers outside of it."""

import json
import math
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from pipeline.common.files import temporary_name

INTERVAL = 5.0  # seconds between two, at least
WINDOW = 20  # steps of the mean


class Heartbeat:
    """RUN/heartbeat.json: `step` of `max_steps`, the step's `loss` (null: not finite), the `time`
    (Unix, seconds), `seconds_per_step` (mean of the last ones), `job` (Slurm's id, or null).

    Not flushed to disk, and never a reason to fail: if it cannot be written, the old one stays.
    """

    def __init__(self, run: Path, max_steps: int) -> None:
        self.path, self.max_steps = run / "heartbeat.json", max_steps
        self.written = -math.inf
        self.moments: deque[float] = deque(maxlen=WINDOW + 1)
        self.latest: dict[str, float | int | str | None] = {}

    def beat(self, step: int, loss: float, seconds: float) -> None:
        """Update `step` took that many seconds; written unless the last write was just now."""
        now = time.monotonic()
        self.moments.append(now)
        if len(self.moments) > 1:  # validations and checkpoints take their part
            seconds = (now - self.moments[0]) / (len(self.moments) - 1)
        self.latest = {
            "step": step,
            "max_steps": self.max_steps,
            "loss": loss if math.isfinite(loss) else None,
            "time": time.time(),
            "seconds_per_step": seconds,
            "job": os.environ.get("SLURM_JOB_ID"),
        }
        if now - self.written >= INTERVAL:
            self.write()

    def write(self) -> None:
        """Write the latest, if there was one."""
        if not self.latest:
            return
        temporary = temporary_name(self.path)
        try:
            temporary.write_text(json.dumps(self.latest) + "\n")
            temporary.replace(self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        self.written = time.monotonic()
