"""Skips updates whose loss or gradient is not finite, and, on request, loss spikes.

The decision is made before the backward pass of the last micro-batch, from the loss summed over all
ranks, so they all decide alike. An unwanted update gets a NaN gradient, which ZeRO stages 1 to 3
skip themselves: weights and optimizer state stay as they are, and gradients are cleared.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pipeline.common.files import replace_json
from pipeline.data.order import SampleRef
from pipeline.distributed.world import RunFailed
from pipeline.shards import Dataset
from pipeline.training.callbacks.base import Callback
from pipeline.training.state import StepResult, TrainingState, Verdict

WINDOW = 100  # previous losses that a new one is compared with
FEWEST = 20  # losses needed before one can count as a spike


class Health(Callback):
    """Judges every update by its loss; resumed, as the earlier run would have continued.

    `samples` names those of global batch `step` (from 0), for the file about a skipped update.
    """

    def __init__(self, samples: Callable[[int], list[dict[str, Any]]]) -> None:
        self.samples = samples
        self.losses: list[float] = []
        self.skipped = self.in_a_row = 0
        self.spike = False

    def on_fit_start(self, state: TrainingState) -> None:
        self.settings, self.world = state.config.train, state.world
        self.folder = state.folder / "health"

    def load_state(self, progress: dict[str, Any]) -> None:
        if state := progress.get("health"):
            self.losses = state["losses"]
            self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]

    def state_dict(self) -> dict[str, Any]:
        state = {"losses": self.losses, "skipped": self.skipped, "in_a_row": self.in_a_row}
        return {"health": state}

    def wants_update(self, loss: float) -> bool:
        """Not with a loss that is not finite, nor with a spike where those are skipped."""
        self.spike = is_spike(loss, self.losses, self.settings.spike_deviations)
        return math.isfinite(loss) and not (self.spike and self.settings.skip_spikes)

    def after_update(self, state: TrainingState, result: StepResult) -> None:
        """Add the metrics `skipped_updates` and `loss_spike`; files and messages count from 1.

        Raises RunFailed after `max_skipped_updates` skipped in a row, and where DeepSpeed made an
        update that it should not have made.
        """
        loss, norm, applied = result.verdict.loss, result.gradient_norm, result.applied
        wrongly_applied = applied and not (result.verdict.wanted and math.isfinite(norm or 0))
        if norm is None or norm < 0 or wrongly_applied:
            raise RunFailed(
                f"step {state.step}: DeepSpeed {'made' if applied else 'skipped'} the update with "
                f"loss {loss} and gradient norm {norm}; resume from the last checkpoint with one "
                "of ds_configs/, and report this"
            )
        if self.spike and self.world.is_main:
            print(f"step {state.step}: the loss {loss:.4f} is a spike", flush=True)
        if math.isfinite(loss):  # spikes too: after a lasting rise they stop being spikes
            self.losses = [*self.losses, loss][-WINDOW:]
        self.in_a_row = 0 if applied else self.in_a_row + 1
        if not applied:
            self.skipped += 1
            self._report_skipped(state.step, result.verdict)
        result.metrics.update(skipped_updates=self.skipped, loss_spike=float(self.spike))

    def _report_skipped(self, step: int, verdict: Verdict) -> None:
        if not math.isfinite(verdict.loss):
            reason = f"loss is {verdict.loss}"
        else:
            reason = "gradient is not finite" if verdict.wanted else "loss is a spike"
        file = self.folder / f"skipped-{step:08d}.json"
        shares = self.world.gather(float(verdict.share))
        if self.world.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_json(
                file,
                {
                    "step": step,
                    "reason": reason,
                    "loss": text(verdict.loss),
                    "loss_by_rank": [text(share) for share in shares],
                    "skipped_in_a_row": self.in_a_row,
                    "samples": self.samples(step - 1),
                },
            )
            print(f"step {step}: update skipped, {reason}; {file} names the samples", flush=True)
        if self.in_a_row >= self.settings.max_skipped_updates:
            raise RunFailed(
                f"step {step}: {self.in_a_row} updates skipped in a row, the last because its "
                f"{reason} (train.max_skipped_updates); {file} names the samples"
            )


def is_spike(loss: float, losses: list[float], deviations: float) -> bool:
    """Whether a loss lies more than `deviations` standard deviations above the mean of the last.

    Never with 0 deviations, or with fewer than FEWEST losses to compare with.
    """
    if not deviations or len(losses) < FEWEST:
        return False
    return bool(loss > np.mean(losses) + deviations * np.std(losses))


def text(value: float) -> float | str:
    """The number, or its name where JSON has none for it: nan, inf, -inf."""
    return value if math.isfinite(value) else str(value)


def sample_names(datasets: Sequence[Dataset], refs: Iterable[SampleRef]) -> list[dict[str, Any]]:
    """Folder, index in it, and id or url of every sample."""
    names = []
    for ref in refs:
        dataset = datasets[ref.dataset]
        metadata = dataset[ref.sample].metadata
        name = metadata.get("id", metadata.get("url"))
        names.append({"dataset": str(dataset.path), "index": ref.sample, "id": name})
    return names
