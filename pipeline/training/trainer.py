"""The training loop, from a prepared run to a finished run folder."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.common.batch_spans import batch_of
from pipeline.common.command_line import RESUME_LATER
from pipeline.common.files import replace_json
from pipeline.config import RunConfig
from pipeline.data.batches import StepBatch
from pipeline.data.prefetch import Prefetched
from pipeline.data.shard_cache import ShardCache
from pipeline.distributed.device import reset_peak_memory
from pipeline.distributed.network_check import check_links
from pipeline.distributed.world import RunFailed, World
from pipeline.training.callbacks.base import Callback
from pipeline.training.callbacks.costs import Costs
from pipeline.training.callbacks.health import Health, sample_names
from pipeline.training.callbacks.kernel_plots import KernelPlots
from pipeline.training.callbacks.recorder import NoRecorder, Recorder
from pipeline.training.callbacks.stop_request import StopRequest
from pipeline.training.callbacks.validation import BEST, Validation, gave_up
from pipeline.training.callbacks.watchdog import Watchdog
from pipeline.training.engine import make_engine
from pipeline.training.micro_batches import batches_of, with_accumulation
from pipeline.training.preflight import check_same_weights, rehearse, survey
from pipeline.training.prepare import PreparedRun
from pipeline.training.schedule import learning_rate, steps_of
from pipeline.training.state import StepResult, TrainingState, Verdict
from pipeline.training.step import SKIPPED, seed_dropout, update

FINISHED = "FINISHED"  # marker in the run folder, written last


def train(
    config: RunConfig, prepared: PreparedRun, world: World, callbacks: Sequence[Callback] = ()
) -> int:
    """Train to `max_steps`, or until validation stops improving (`early_stopping`); a collective.

    `callbacks` are called after the run's own. Returns 0 when finished, 85 when stopped on request
    and saved, to be resumed. Raises RunFailed on all ranks when the run cannot continue.
    """
    world = world.in_sequences(config.train.sequence_parallel_size)
    steps = steps_of(config.train, len(prepared.train))
    config = replace(config, train=replace(config.train, max_steps=steps))
    done = prepared.checkpoints.steps_done
    if is_finished(config, done):
        if world.is_main:
            planned = "" if done == steps else f", of --train.max_steps {steps}"
            print(f"{config.output} is finished after {done} steps{planned}; nothing to do")
        return 0
    with closing(prepared.checkpoints):
        config, prepared = with_accumulation(config, prepared, world)
        with prefetched(config, prepared, world) as batches:
            return Trainer(config, prepared, world, batches, callbacks).fit()


def is_finished(config: RunConfig, done: int) -> bool:
    """Whether the run folder holds a run that ended as this configuration would end it."""
    marker = Path(config.output) / FINISHED
    if not marker.exists():
        return False
    return done >= config.train.max_steps or gave_up(config.train, json.loads(marker.read_text()))


def prefetched(config: RunConfig, prepared: PreparedRun, world: World) -> Prefetched:
    """This rank's batches, prepared ahead; one rank of each node reads shards ahead."""
    shard_cache = None
    if world.local_rank == 0:
        kept = [prepared.validation.dataset] if prepared.validation else []
        shard_cache = ShardCache(prepared.train.datasets, prepared.order, kept)
    return Prefetched(
        batches_of(config, prepared, world), shard_cache, pin=world.device.type == "cuda"
    )


class Trainer:
    """One run, from its newest checkpoint to its end."""

    def __init__(
        self,
        config: RunConfig,
        prepared: PreparedRun,
        world: World,
        batches: Prefetched,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.settings, self.prepared, self.batches = config.train, prepared, batches
        self.checkpoints = prepared.checkpoints
        self.world = world
        self.state = TrainingState(config, world, Path(config.output))
        self.checkpoint_seconds = 0.0
        recorder = Recorder() if world.is_main else NoRecorder()
        stop = StopRequest(self.settings.stop_after)
        self.callbacks: list[Callback] = [
            Watchdog(self.settings.hang_timeout),
            stop,
            Health(self._sample_names),
            Costs(prepared.model.config, recorder),
            recorder,
            KernelPlots(recorder),
        ]
        if prepared.validation:
            self.callbacks.append(Validation(prepared.validation, recorder, stop))
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"{callback!r} is not a Callback; give instances, not classes")
        self.callbacks += callbacks
        self.state.callbacks = self.callbacks

    def fit(self) -> int:
        """Every step: update, record, checkpoint when due, then validate. Status as in `train`."""
        state, last = self.state, self.settings.max_steps
        try:
            self.notify("on_fit_start", state)
            self._start()
            while not (state.is_last or state.stopping):
                result = self._step()
                state.step += 1
                state.is_last = state.step == last
                state.stopping = result.verdict.stopping
                self.checkpoint_seconds = 0.0
                self.notify("after_update", state, result)

                due = state.step % self.settings.checkpoint_every == 0
                if due or state.is_last or state.stopping:
                    self._save()
                if not state.stopping:
                    self._end_step()
            if state.stopping:
                self._save()
                self.notify("on_stop", state)
                return RESUME_LATER
            self._finish()
            return 0
        finally:
            self.notify("close")

    def _start(self) -> None:
        """Weights, engine and progress of the newest checkpoint, then the start-up check."""
        state, model = self.state, self.prepared.model
        if self.settings.startup_check:
            self.notify("on_phase", "the network check")
            check_links(self.world)
        self.checkpoints.load_weights(model)
        check_same_weights(model, self.world)  # DeepSpeed would silently overwrite them
        state.engine = make_engine(state.config, self.prepared)
        state.step, progress = self.checkpoints.resume(state.engine)
        state.is_last = state.step == self.settings.max_steps
        self.notify("load_state", progress)
        self.notify("on_engine_ready", state)
        self._on_all(lambda: self.notify("open_files", state))
        if self.settings.startup_check:
            self.notify("on_phase", "the start-up check")
            self._rehearse()
            self.notify("on_rehearsal", state)
        self.notify("on_loop_start", state)
        if state.step:  # the validation that a stopped run did not reach
            self._end_step()

    def _rehearse(self) -> None:
        """Forward and backward on the longest micro-batches to come; changes nothing."""
        engine, steps = self.state.engine, range(self.state.step, self.settings.max_steps)
        check_same_weights(engine.module, self.world)  # as loaded
        found = survey(self.batches.batches, steps, self.world)
        if found.shapes and self.world.is_main:
            print(found.padding())
        rehearse(
            engine,
            found.longest(),
            self.settings.accumulation,
            self.world,
            lambda micro_batches: update(
                engine, micro_batches, 1, self.world, lambda _: SKIPPED, lambda _: None
            ),
        )
        reset_peak_memory(self.world.device)

    def _step(self) -> StepResult:
        """The next update, on its global batch: made or skipped."""
        state, engine, step = self.state, self.state.engine, self.state.step
        self.notify("on_phase", f"the data of step {step + 1}")
        self.notify("before_step", state)
        lr = learning_rate(step, self.settings)
        for group in engine.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * lr
        seed_dropout(self.settings.seed, step, self.world.data_rank)
        batch = self.batches.step(step)
        self.notify("after_part", "data")

        self.notify("on_phase", f"the update of step {step + 1}")
        self.notify("before_update", state, batch)
        verdict = update(
            engine, batch.micro_batches, batch.target_tokens, self.world, self._judge,
            lambda part: self.notify("after_part", part),
        )  # fmt: skip
        norm, skipped = engine.get_global_grad_norm(), self.prepared.order.skipped
        metrics = {
            "loss": verdict.loss,
            "lr": lr,
            "gradient_norm": math.nan if norm is None else float(norm),
            **batch_metrics(batch),
            "processes": self.world.size,
            **({"batch": batch_of(step, skipped) + 1} if skipped else {}),
            "checkpoint_seconds": self.checkpoint_seconds,  # of the save before this step
        }
        return StepResult(batch, verdict, engine.was_step_applied(), norm, metrics)

    def _judge(self, share: torch.Tensor) -> Verdict:
        """Sum the ranks' shares of the loss and their wish to stop; a collective."""
        stop = any(callback.wants_stop() for callback in self.callbacks)
        loss, stopping = self.world.sum(share, float(stop))
        wanted = all(callback.wants_update(loss) for callback in self.callbacks)
        return Verdict(loss, share, wanted, stopping > 0)

    def _end_step(self) -> None:
        """Validate if due, then save what that changed: the best checkpoint, its count."""
        self.state.wants_checkpoint = False
        self.notify("on_phase", f"the validation of step {self.state.step}")
        self.notify("on_step_end", self.state)
        if self.state.wants_checkpoint or self.checkpoints.steps_done == self.state.step:
            self._save()

    def _save(self) -> None:
        """Save this step; of one that is saved already, only the progress that has changed."""
        self._on_all(lambda: self.notify("flush"))
        self.notify("on_phase", f"the checkpoint of step {self.state.step}")
        if self.checkpoints.steps_done == self.state.step:
            self.checkpoints.update_progress(self._progress())
        else:
            self.checkpoint_seconds = self.checkpoints.save(
                self.state.engine, self.state.step, self._progress(), self.callbacks
            )

    def _progress(self) -> dict[str, Any]:
        """What the callbacks need to resume, by name; JSON types."""
        states = [callback.state_dict() for callback in self.callbacks]
        return {name: value for state in states for name, value in state.items()}

    def _finish(self) -> None:
        """Write the marker of a finished run, once everything recorded is on disk."""
        progress = self._progress()
        best = {name: progress[name] for name in BEST if name in progress}

        def write() -> None:
            self.notify("flush")
            self.notify("close")
            if self.world.is_main:
                replace_json(self.state.folder / FINISHED, {"steps": self.state.step, **best})

        self._on_all(write)
        if self.world.is_main:
            model = self.state.folder / ("best" if "best" in progress else "last")
            print(f"{self.state.folder} is finished after {self.state.step} steps; model: {model}")

    def _on_all(self, action: Callable[[], None]) -> None:
        """Run `action` on every rank; where one cannot write, RunFailed on all."""
        run = self.state.folder
        self.world.on_all(
            action, OSError,
            failure=lambda problem: RunFailed(
                f"{run} cannot be written: {problem}; the checkpoints are intact: make room or fix "
                "the folder, then start the same command again"
            ),
        )  # fmt: skip

    def _sample_names(self, step: int) -> list[dict[str, Any]]:
        """Of global batch `step` (from 0), for the file about a skipped update."""
        return sample_names(self.prepared.train.datasets, self.prepared.order.samples(step))

    def notify(self, hook: str, *arguments: Any) -> None:
        """Call one hook of every callback, in their order."""
        for callback in self.callbacks:
            getattr(callback, hook)(*arguments)


def batch_metrics(batch: StepBatch) -> dict[str, float]:
    """The size of a global batch, and the share of real tokens among its padded positions."""
    return {
        "source_tokens": batch.source_tokens,
        "target_tokens": batch.target_tokens,
        "source_fill": batch.source_fill,
        "target_fill": batch.target_fill,
    }
