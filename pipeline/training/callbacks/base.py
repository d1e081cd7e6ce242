"""The base class of callbacks: hooks that do nothing unless overridden."""

from pathlib import Path
from typing import Any

from pipeline.data.batches import StepBatch
from pipeline.training.state import StepResult, TrainingState


class Callback:
    """One concern of a run that is not the update itself.

    Every rank calls the hooks of the same callbacks in the same order, so a hook may be a
    collective unless its docstring says otherwise. TypeError for a subclass whose method is named
    like a hook but is none: it would never be called.
    """

    def __init_subclass__(cls) -> None:
        unknown = [
            name
            for name in vars(cls)
            if name.startswith(("on_", "before_", "after_", "wants_"))
            and not hasattr(Callback, name)
        ]
        if unknown:
            hooks = ", ".join(name for name in vars(Callback) if not name.startswith("_"))
            raise TypeError(f"{cls.__name__} has no hook {', '.join(unknown)}; give one of {hooks}")

    def on_fit_start(self, state: TrainingState) -> None:
        """Before weights are loaded and the engine is made."""

    def load_state(self, progress: dict[str, Any]) -> None:
        """Take over what `state_dict` gave when the resumed checkpoint was saved."""

    def open_files(self, state: TrainingState) -> None:
        """Open what is written to. Not collective; an OSError on one rank ends the run on all."""

    def on_engine_ready(self, state: TrainingState) -> None:
        """The engine holds the weights and moments after `state.step` updates."""

    def on_phase(self, phase: str) -> None:
        """The loop enters `phase`, a description for readers. Not collective."""

    def on_rehearsal(self, state: TrainingState) -> None:
        """Try what would otherwise fail after hours; it must change nothing."""

    def on_loop_start(self, state: TrainingState) -> None:
        """Files are open and all checks passed; the next update is `state.step + 1`."""

    def before_step(self, state: TrainingState) -> None:
        """Before the batch of update `state.step + 1` is fetched."""

    def before_update(self, state: TrainingState, batch: StepBatch) -> None:
        """This rank has its share of the batch; the update follows."""

    def after_part(self, part: str) -> None:
        """A part of the step is done: data, forward, backward or optimizer. Not collective."""

    def wants_stop(self) -> bool:
        """Whether this rank asks the run to stop after this update. Not collective."""
        return False

    def wants_update(self, loss: float) -> bool:
        """Whether the update may be made; `loss` is the whole batch's, the same on all ranks."""
        return True

    def after_update(self, state: TrainingState, result: StepResult) -> None:
        """Update `state.step` is made or skipped; `result.metrics` may be added to."""

    def flush(self) -> None:
        """Bring what was written to disk. Not collective; an OSError ends the run on all ranks."""

    def on_moments_saved(self, path: Path) -> None:
        """This rank's part of a checkpoint is written, under a temporary name. Not collective."""

    def on_checkpoint_named(self, folder: Path) -> None:
        """A whole checkpoint got its final name. Rank 0 only."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue as this one would; JSON types."""
        return {}

    def on_step_end(self, state: TrainingState) -> None:
        """After the checkpoint of `state.step`, if one was due."""

    def on_stop(self, state: TrainingState) -> None:
        """The run stops on request; everything is saved."""

    def close(self) -> None:
        """The run ends, successfully or not. Not collective."""
