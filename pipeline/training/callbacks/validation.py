"""Validation every so often, after the checkpoint: the best step, early stopping."""

import math
from contextlib import suppress
from typing import Any

from pipeline.config import TrainConfig
from pipeline.training.callbacks.base import Callback
from pipeline.training.callbacks.recorder import NoRecorder
from pipeline.training.callbacks.stop_request import StopRequest
from pipeline.training.state import TrainingState
from pipeline.training.validation_set import ValidationSet, ValidationStopped

BEST = ("best", "validations_since_best")
"""What of the progress the marker of a finished run repeats."""


class Validation(Callback):
    """Scores the model every `validate_every` updates and after the last one.

    The best step so far is saved even where no checkpoint is due; after `early_stopping`
    validations without a better one the run ends. A checkpoint is written before its validation:
    where the run stopped between the two, or in the validation, the resumed run validates first.
    """

    def __init__(
        self, validation_set: ValidationSet, recorder: NoRecorder, stop: StopRequest
    ) -> None:
        self.validation_set, self.recorder, self.stop = validation_set, recorder, stop
        self.best: dict[str, Any] | None = None
        self.since_best = 0
        self.validated: int | None = None

    def load_state(self, progress: dict[str, Any]) -> None:
        self.best = progress.get("best")
        self.since_best = since_best(progress)
        self.validated = progress.get("validated")

    def on_engine_ready(self, state: TrainingState) -> None:
        if self.validated is None:  # a new run, or a checkpoint written after its validation
            self.validated = state.step

    def on_rehearsal(self, state: TrainingState) -> None:
        with suppress(ValidationStopped):  # the request is honoured after the first update
            self.validation_set.rehearse(state.engine.module, self.stop)

    def state_dict(self) -> dict[str, Any]:
        best = {"best": self.best} if self.best else {}
        return {**best, "validations_since_best": self.since_best, "validated": self.validated}

    def on_step_end(self, state: TrainingState) -> None:
        due = state.is_last or state.step % state.config.train.validate_every == 0
        if not due or self.validated == state.step:
            return
        try:
            scores, summaries = self.validation_set.run(state.engine.module, self.stop)
        except ValidationStopped:
            state.stopping = True  # the resumed run validates first
            return
        self.recorder.validation(state.step, scores, summaries)
        self.validated = state.step
        quality = scores.get("mean_rouge", -scores["loss"])
        best = self.best["quality"] if self.best else -math.inf
        improved = math.isfinite(quality) and quality > best
        self.since_best = 0 if improved else self.since_best + 1
        if improved:
            self.best = {"step": state.step, "quality": quality}
        gives_up = gave_up(state.config.train, self.state_dict())
        state.is_last = state.is_last or gives_up
        state.wants_checkpoint = improved or gives_up


def since_best(progress: dict[str, Any]) -> int:
    """Validations since the best one."""
    return progress.get("validations_since_best", 0)


def gave_up(settings: TrainConfig, progress: dict[str, Any]) -> bool:
    """Whether that many validations brought nothing better that the run ends early."""
    return 0 < settings.early_stopping <= since_best(progress)
