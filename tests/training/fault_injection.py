"""A callback that injects faults, and train.py with it: one harness for all faulty trainings.

    FAULT=MOMENT:RANK:STEP:DEED deepspeed fault_injection.py train.py's arguments...

MOMENT is `update` (before an update), `save` (when half of a rank's moments are written), `named`
(when a whole checkpoint just got its name) or `validation` (when it begins); DEED is one of DEEDS.
Steps count from 1.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from pipeline import train
from pipeline.data.batches import StepBatch
from pipeline.training.callbacks.base import Callback
from pipeline.training.state import StepResult, TrainingState

Fault = Callable[[TrainingState], AbstractContextManager[Any]]
"""What is wrong while one update is made."""


class Faults(Callback):
    """Each fault is there from before the update of its step until after it."""

    def __init__(self, faults: Mapping[int, Fault]) -> None:
        self.faults = faults
        self.active: AbstractContextManager[Any] | None = None

    def before_update(self, state: TrainingState, batch: StepBatch) -> None:
        if fault := self.faults.get(state.step + 1):
            self.active = fault(state)
            self.active.__enter__()

    def after_update(self, state: TrainingState, result: StepResult) -> None:
        if self.active:
            self.active.__exit__(None, None, None)
            self.active = None


class Deed(Callback):
    """Does something drastic at one moment of one step."""

    def __init__(self, moment: str, step: int, deed: Callable[[], None]) -> None:
        self.moment, self.at, self.deed = moment, step, deed
        self.step = 0

    def before_update(self, state: TrainingState, batch: StepBatch) -> None:
        self.step = state.step + 1
        if self.moment == "update" and self.step == self.at:
            self.deed()

    def on_phase(self, phase: str) -> None:
        if self.moment == "validation" and phase == f"the validation of step {self.at}":
            self.deed()

    def on_moments_saved(self, path: Path) -> None:
        if self.moment == "save" and self.step == self.at:
            os.truncate(path, path.stat().st_size // 2)
            self.deed()

    def on_checkpoint_named(self, folder: Path) -> None:
        if self.moment == "named" and self.step == self.at:
            self.deed()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_all() -> None:
    """The process group, the launcher with it."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.\nAnd more")


def raise_error() -> None:
    raise KeyError("injected")


def tell() -> None:
    print("the moment has come", flush=True)


def sleep() -> None:
    time.sleep(1000)


DEEDS = {
    "kill": kill,
    "kill-all": kill_all,
    "raise": raise_error,
    "memory": run_out_of_memory,
    "sleep": sleep,
    "tell": tell,
}


def injected(fault: str) -> list[Callback]:
    """The callbacks of this process for MOMENT:RANK:STEP:DEED."""
    moment, rank, step, deed = fault.split(":")
    mine = os.environ.get("RANK", "0") == rank
    return [Deed(moment, int(step), DEEDS[deed])] if mine else []


if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    status = train.main(arguments, injected(os.environ["FAULT"]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
