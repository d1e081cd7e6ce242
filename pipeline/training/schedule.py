"""The learning rate as a pure function of the step, and how many steps there are."""

import math

from pipeline.config import TrainConfig


def learning_rate(step: int, train: TrainConfig) -> float:
    """Learning rate of update `step` (from 0).

    inverse_sqrt: peak sqrt(w + 1) / sqrt(max(step + 1, w + 1)) with w = warmup_steps: the peak for
    w + 1 updates, then falling. The published configuration's formula, with w = 10,000 and peak
    0.02; the paper (appendix, hyper-parameters) prints 2e4 / sqrt(max(1e4, step)), a misprint, and
    calls it identical to T5's.
    linear: up to the peak at update w, then down to peak / (max_steps - w) at the last.
    """
    if train.schedule == "constant":
        return train.peak_lr
    if train.schedule == "linear":
        warmup = min(train.warmup_steps, train.max_steps - 1)
        rise = (step + 1) / (warmup + 1)
        fall = (train.max_steps - step) / (train.max_steps - warmup)
        return train.peak_lr * max(0.0, min(rise, fall))
    hold = train.warmup_steps + 1
    return train.peak_lr * math.sqrt(hold / max(step + 1, hold))


def steps_of(train: TrainConfig, samples: int) -> int:
    """Updates of a whole run on that many samples: max_steps, or fewer by max_epochs."""
    if not train.max_epochs:
        return train.max_steps
    return min(train.max_steps, math.ceil(train.max_epochs * samples / train.batch_size))
