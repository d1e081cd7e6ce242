"""What the training loop and its callbacks know of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.config import RunConfig
from pipeline.data.batches import StepBatch
from pipeline.distributed.world import World


@dataclass
class TrainingState:
    """A run as it stands; the loop changes it, callbacks read it."""

    config: RunConfig
    world: World
    folder: Path
    """The run folder."""
    engine: Any = None
    """The DeepSpeed engine, once it is made."""
    callbacks: Sequence[Any] = ()
    """Those of the run, in the order in which they are called."""
    step: int = 0
    """Updates done, skipped ones included."""
    is_last: bool = False
    """Whether the run ends with this step; a callback may set it in `on_step_end`."""
    stopping: bool = False
    """Whether a rank asked the run to stop, to be resumed; the same on all ranks."""
    wants_checkpoint: bool = False
    """Set by a callback in `on_step_end` to have this step saved even where none is due."""


@dataclass(frozen=True)
class Verdict:
    """What all ranks know before an update, and agree on."""

    loss: float
    """Mean over the target tokens of the whole batch."""
    share: torch.Tensor | float
    """This rank's part of that loss, on its device: reading it waits for that."""
    wanted: bool
    """Whether the update may be made."""
    stopping: bool
    """Whether a rank asked the run to stop."""


@dataclass(frozen=True)
class StepResult:
    """One update, made or skipped."""

    batch: StepBatch
    verdict: Verdict
    applied: bool
    """Whether DeepSpeed made the update; the same on all ranks."""
    gradient_norm: float | None
    """As DeepSpeed gives it; the same on all ranks."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What is recorded of this step, by name."""
