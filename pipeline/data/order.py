"""The global sample order: a pure function of (dataset, seed, batch size).

It does not know the number of processes, so a run may be resumed on another number; where it
stands is one integer, the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

WINDOW_SHARDS = 16  # shuffled together: bounds the shards that are open at one time


class SampleRef(NamedTuple):
    """Sample number `sample` of dataset number `dataset`."""

    dataset: int
    sample: int


@dataclass(frozen=True)
class GlobalOrder:
    """Endless epochs over one dataset, each a fresh permutation, cut into batches.

    In an epoch the shards are permuted, taken in windows of `WINDOW_SHARDS`, and the samples are
    permuted within each window. Every sample comes once an epoch; a batch may span two epochs.
    """

    shard_sizes: tuple[int, ...]
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if sum(self.shard_sizes) == 0:
            raise ValueError(
                "the training dataset holds no samples; see the manifest's counts.excluded for why "
                "and prepare it again"
            )

    def __len__(self) -> int:
        """Samples in an epoch."""
        return sum(self.shard_sizes)

    def samples(self, step: int) -> list[SampleRef]:
        """The samples of global batch `step` (from 0), in order."""
        first = step * self.batch_size
        return [self._sample(position) for position in range(first, first + self.batch_size)]

    def _sample(self, position: int) -> SampleRef:
        epoch, place = divmod(position, len(self))
        bounds, windows = _windows(self.shard_sizes, self.seed, epoch)
        window = int(np.searchsorted(bounds, place, side="right")) - 1
        permuted = _permuted(self.shard_sizes, windows[window], self.seed, epoch, window)
        return SampleRef(0, int(permuted[place - bounds[window]]))


@lru_cache(maxsize=4)
def _windows(
    shard_sizes: tuple[int, ...], seed: int, epoch: int
) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Where each window of an epoch begins in it, and the shards of each window."""
    shards = np.random.default_rng((seed, epoch)).permutation(len(shard_sizes))
    windows = [
        tuple(shards[start : start + WINDOW_SHARDS].tolist())
        for start in range(0, len(shards), WINDOW_SHARDS)
    ]
    sizes = [sum(shard_sizes[shard] for shard in window) for window in windows]
    return np.cumsum([0, *sizes[:-1]]), windows


@lru_cache(maxsize=4)
def _permuted(
    shard_sizes: tuple[int, ...], window: Sequence[int], seed: int, epoch: int, number: int
) -> np.ndarray:
    """The dataset-wide sample indices of a window, permuted."""
    starts = np.concatenate([[0], np.cumsum(shard_sizes)])
    indices = np.concatenate([np.arange(starts[s], starts[s + 1]) for s in window])
    return np.random.default_rng((seed, epoch, number)).permutation(indices)
