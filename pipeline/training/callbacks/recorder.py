"""The record of a run: metrics.jsonl, TensorBoard events, heartbeat.json, a progress bar."""

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from pipeline.common.files import replace_text
from pipeline.common.progress import Progress
from pipeline.training.callbacks.base import Callback
from pipeline.training.callbacks.heartbeat import Heartbeat
from pipeline.training.state import StepResult, TrainingState


class NoRecorder(Callback):
    """The recorder of every rank but 0: it records nothing."""

    events: SummaryWriter | None = None

    def describe(self, name: str, text: str) -> None:
        """A text next to the curves."""

    def validation(self, step: int, values: Mapping[str, float], summaries: list[str]) -> None:
        """Record one validation, with a few generated summaries."""

    def recording(self) -> AbstractContextManager[None]:
        """An OSError inside makes the run stop at the end of the step, not here."""
        return nullcontext()


class Recorder(NoRecorder):
    """Rank 0's record of the run, cut back on resume to the step resumed from.

    What cannot be written, on a full disk, becomes the `problem`, at which the run stops: `flush`
    raises it as OSError.
    """

    problem: str | None = None
    validated: int | None = None

    def load_state(self, progress: dict[str, Any]) -> None:
        self.validated = progress.get("validated")

    def open_files(self, state: TrainingState) -> None:
        run, step, max_steps = state.folder, state.step, state.config.train.max_steps
        replace_text(run / "config.yaml", state.config.to_yaml())
        path = run / "metrics.jsonl"
        if path.exists():  # lines beyond the checkpoint describe steps that will be taken again
            pending = self.validated not in (None, step)
            replace_text(path, "".join(_lines_until(path, step, pending)))
        self.file = path.open("a", encoding="utf-8")
        threading.excepthook = _quiet  # the writer thread's errors are raised by its next call
        self.events = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        self.heartbeat = Heartbeat(run, max_steps)
        if step == 0:
            self.describe("config", f"```\n{state.config.to_yaml()}```")
        self.progress = Progress("Training", max_steps, "steps", initial=step)

    def describe(self, name: str, text: str) -> None:
        with self.recording():
            self._events().add_text(name, text, 0)

    def wants_stop(self) -> bool:
        return self.problem is not None

    def after_update(self, state: TrainingState, result: StepResult) -> None:
        values = result.metrics
        with self.recording():
            self._write(state.step, values)
        self.heartbeat.beat(state.step, values["loss"], values["seconds"])
        self.progress.update(1, f"loss {values['loss']:.3f}, lr {values['lr']:.2e}")

    def validation(self, step: int, values: Mapping[str, float], summaries: list[str]) -> None:
        with self.recording():
            self._write(step, {f"validation_{name}": value for name, value in values.items()})
            if summaries:
                self._events().add_text("summaries", "\n\n---\n\n".join(summaries), step)
        print(
            f"validation after {step} steps: "
            + ", ".join(f"{name} {value:.4f}" for name, value in values.items()),
            flush=True,
        )

    @contextmanager
    def recording(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.problem = self.problem or str(error)

    def flush(self) -> None:
        self.heartbeat.write()
        if self.problem:
            raise OSError(self.problem)
        self.file.flush()
        self._events().flush()

    def close(self) -> None:
        if self.events is None:
            return
        self.progress.close()
        for file in (self.file, self.events):
            with suppress(OSError):  # `flush` has reported it
                file.close()
        self.events = None

    def _events(self) -> SummaryWriter:
        assert self.events is not None
        return self.events

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        # JSON has no NaN; a curve has a gap there.
        known = {k: value if math.isfinite(value) else None for k, value in values.items()}
        self.file.write(json.dumps({"step": step, **known}) + "\n")
        for name, value in known.items():
            if value is not None:
                self._events().add_scalar(name.replace("validation_", "validation/"), value, step)


def _quiet(arguments: threading.ExceptHookArgs) -> None:
    """No traceback of a thread that could not write."""
    if not isinstance(arguments.exc_value, OSError):
        threading.__excepthook__(arguments)


def _lines_until(path: Path, step: int, pending: bool) -> list[str]:
    """The whole lines up to `step`, without its validation if that is `pending`, to be repeated."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            values = json.loads(line)
        except ValueError:
            continue  # a torn write of the run that was stopped
        repeated = pending and values["step"] == step and "validation_loss" in values
        if line.endswith("\n") and values["step"] <= step and not repeated:
            kept.append(line)
    return kept
