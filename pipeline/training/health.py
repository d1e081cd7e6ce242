"""Whether an update may be made: losses and gradients that are not finite, and spikes.

The decision falls before the last micro-batch's backward pass, from the loss summed over all
processes, so that all of them decide alike. An update that is not wanted is given a gradient that
is not finite, and ZeRO's stages 1 to 3 leave out such an update themselves: weights and optimizer
state stay as they are, and the gradients are cleared as each stage does it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import TrainConfig
from pipeline.data.order import SampleRef
from pipeline.distributed import World
from pipeline.files import replace_json
from pipeline.shards import Dataset

WINDOW = 100  # losses that a new one is compared with
FEWEST = 20  # of them, before any counts as a spike


class RunFailed(Exception):
    """The run cannot go on; the message is one line for the user. Raised on all processes."""


@dataclass(frozen=True)
class Verdict:
    """What all processes know before an update, and agree on."""

    loss: float
    """Mean over the target tokens of the whole batch."""
    share: float
    """This process's part of that loss."""
    spike: bool
    wanted: bool
    """Whether the update is to be made."""
    stopping: bool
    """Whether a process was asked to stop."""


UNWANTED = Verdict(math.nan, math.nan, spike=False, wanted=False, stopping=False)


class Health:
    """Judges every update; with the `state()` of an earlier run, as that one would go on.

    `samples` names those of global batch `step` (from 0), for the file on a skipped update.
    """

    def __init__(
        self,
        settings: TrainConfig,
        run: Path,
        world: World,
        samples: Callable[[int], list[dict[str, Any]]],
        state: dict[str, Any] | None = None,
    ) -> None:
        self.samples = samples
        self.settings, self.folder, self.world = settings, run / "health", world
        state = state or {"losses": [], "skipped": 0, "in_a_row": 0}
        self.losses: list[float] = state["losses"]
        self.skipped: int = state["skipped"]
        self.in_a_row: int = state["in_a_row"]

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to judge as this one would; JSON types."""
        return {"losses": self.losses, "skipped": self.skipped, "in_a_row": self.in_a_row}

    def judge(self, share: float, stop: bool) -> Verdict:
        """Sum the processes' shares of the loss and their wish to stop; a collective."""
        loss, stopping = self.world.sum(share, float(stop))
        spike = is_spike(loss, self.losses, self.settings.spike_deviations)
        wanted = math.isfinite(loss) and not (spike and self.settings.skip_spikes)
        return Verdict(loss, share, spike, wanted, stopping > 0)

    def record(
        self, step: int, verdict: Verdict, applied: bool, norm: float | None
    ) -> dict[str, float]:
        """Take note of the update of batch `step`; the metrics `skipped_updates`, `loss_spike`.

        `applied` is whether DeepSpeed made the update, `norm` that of the gradient, both the same
        on all processes. Raises RunFailed after `max_skipped_updates` skipped in a row, and where
        an update was made that ought not to have been. Files and messages count steps from 1.
        """
        if norm is None or norm < 0 or (applied and not (verdict.wanted and math.isfinite(norm))):
            raise RunFailed(
                f"step {step + 1}: DeepSpeed {'made' if applied else 'skipped'} the update with "
                f"loss {verdict.loss} and gradient norm {norm}; go on from the last checkpoint "
                "with one of ds_configs/, and report this"
            )
        if verdict.spike and self.world.is_main:
            print(f"step {step + 1}: the loss {verdict.loss:.4f} is a spike", flush=True)
        if math.isfinite(verdict.loss):  # spikes too: after a lasting rise they are none any more
            self.losses = [*self.losses, verdict.loss][-WINDOW:]
        self.in_a_row = 0 if applied else self.in_a_row + 1
        if not applied:
            self.skipped += 1
            self._skipped(step, verdict)
        return {"skipped_updates": self.skipped, "loss_spike": float(verdict.spike)}

    def _skipped(self, step: int, verdict: Verdict) -> None:
        if not math.isfinite(verdict.loss):
            reason = f"loss is {verdict.loss}"
        else:
            reason = "gradient is not finite" if verdict.wanted else "loss is a spike"
        file = self.folder / f"skipped-{step + 1:08d}.json"
        shares = self.world.gather(verdict.share)
        if self.world.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_json(
                file,
                {
                    "step": step + 1,
                    "reason": reason,
                    "loss": text(verdict.loss),
                    "loss_by_rank": [text(share) for share in shares],
                    "skipped_in_a_row": self.in_a_row,
                    "samples": self.samples(step),
                },
            )
            print(
                f"step {step + 1}: update skipped, {reason}; {file} names the samples", flush=True
            )
        if self.in_a_row >= self.settings.max_skipped_updates:
            raise RunFailed(
                f"step {step + 1}: {self.in_a_row} updates skipped in a row, the last because its "
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
