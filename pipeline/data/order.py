"""The global sample order: a pure function of (shard sizes, weights, seed, batch size).

It does not depend on the number of processes, so a run may resume on another number; its position
is one integer, the step.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipeline.common.batch_spans import Spans, batch_of

WINDOW_SHARDS = 16  # shuffled together: bounds the shards that are open at one time


class SampleRef(NamedTuple):
    """Sample number `sample` of dataset number `dataset`."""

    dataset: int
    sample: int


class GlobalOrder:
    """Endless epochs over datasets, mixed by weight and cut into batches.

    `shard_sizes` holds the samples of each shard of each dataset. Every dataset passes through its
    own epochs (see Epochs). The interleaving is deterministic: of the first n places of the stream,
    dataset d has its share of n, to within one for each dataset before it. The batches in `skipped`
    are left out. Raises ValueError for a dataset without samples.
    """

    def __init__(
        self,
        shard_sizes: Sequence[Sequence[int]],
        batch_size: int,
        seed: int,
        weights: Sequence[float] = (1.0,),
        skipped: Spans = (),
    ) -> None:
        self.batch_size, self.skipped = batch_size, skipped
        self.epochs = [
            Epochs(sizes, seed, number)
            for number, (sizes, _) in enumerate(zip(shard_sizes, weights, strict=True))
        ]
        exact = [Fraction(str(weight)) for weight in weights]
        # A dataset's share of what remains after the datasets before it.
        self._shares = [weight / sum(exact[k:]) for k, weight in enumerate(exact)]

    def samples(self, step: int) -> list[SampleRef]:
        """The samples of update `step` (from 0), in order."""
        first = batch_of(step, self.skipped) * self.batch_size
        owners, before = [], self._taken(first)
        taken = before
        for place in range(first + 1, first + self.batch_size + 1):
            after = self._taken(place)
            owners.append(next(d for d, count in enumerate(after) if count > taken[d]))
            taken = after
        drawn = [
            iter(epochs.take(start, stop - start).tolist())
            for epochs, start, stop in zip(self.epochs, before, taken, strict=True)
        ]
        return [SampleRef(dataset, next(drawn[dataset])) for dataset in owners]

    def shards_ahead(self, step: int) -> list[tuple[int, int]]:
        """(dataset, shard) of the windows of update `step`'s batch, then of those that follow."""
        first = batch_of(step, self.skipped) * self.batch_size
        start, stop = self._taken(first), self._taken(first + self.batch_size)
        found = [
            epochs.windows(start[d], stop[d] - start[d]) for d, epochs in enumerate(self.epochs)
        ]
        now = [(d, shard) for d, windows in enumerate(found) for w in windows[:-1] for shard in w]
        later = [(d, shard) for d, windows in enumerate(found) for shard in windows[-1]]
        return list(dict.fromkeys(now + later))

    def _taken(self, places: int) -> list[int]:
        """How many of the first `places` places each dataset fills."""
        counts = []
        for share in self._shares:
            count = (2 * places * share.numerator + share.denominator) // (2 * share.denominator)
            counts.append(count)
            places -= count
        return counts


class Epochs:
    """Endless epochs over one dataset, each a fresh permutation.

    In an epoch the shards are permuted, taken in windows of `WINDOW_SHARDS`, and the samples are
    permuted within each window. Every sample comes once an epoch.
    """

    def __init__(self, shard_sizes: Sequence[int], seed: int, number: int) -> None:
        self.sizes = np.array(shard_sizes, np.int64)
        self.ends = np.cumsum(self.sizes)
        self.seed, self.number = seed, number
        if not self.sizes.sum():
            raise ValueError(
                f"training dataset {number} (from 0) holds no samples; see counts.excluded in its "
                "manifest for why and prepare it again"
            )
        self._windows = lru_cache(2)(self._cut_windows)
        self._permuted = lru_cache(2)(self._permute)

    def __len__(self) -> int:
        """Samples in an epoch."""
        return int(self.ends[-1])

    def take(self, start: int, count: int) -> np.ndarray:
        """Sample indices at `count` places of the endless stream, from place `start` on."""
        pieces = [np.empty(0, np.int64)]
        while count:
            epoch, window, place, size = self._locate(start)
            piece = self._permuted(epoch, window)[place : min(place + count, size)]
            pieces.append(piece)
            start, count = start + len(piece), count - len(piece)
        return np.concatenate(pieces)

    def windows(self, start: int, count: int) -> list[list[int]]:
        """The shards of each window that the places lie in, and of the one that follows."""
        found, last = [], start + max(count, 1)
        while True:
            epoch, window, place, size = self._locate(start)
            found.append(self._windows(epoch)[1][window])
            if start >= last:
                return found
            start += size - place

    def _locate(self, position: int) -> tuple[int, int, int, int]:
        """Epoch, window, place in it, and samples in it, of a position in the endless stream."""
        epoch, place = divmod(position, len(self))
        bounds, windows = self._windows(epoch)
        window = int(np.searchsorted(bounds, place, side="right")) - 1
        return epoch, window, place - int(bounds[window]), int(self.sizes[windows[window]].sum())

    def _cut_windows(self, epoch: int) -> tuple[np.ndarray, list[list[int]]]:
        """Where each window of an epoch begins in it, and the shards of each window."""
        shards = self._random(epoch).permutation(len(self.sizes))
        windows = [
            shards[start : start + WINDOW_SHARDS].tolist()
            for start in range(0, len(shards), WINDOW_SHARDS)
        ]
        sizes = [int(self.sizes[window].sum()) for window in windows]
        return np.cumsum([0, *sizes[:-1]]), windows

    def _permute(self, epoch: int, window: int) -> np.ndarray:
        """The dataset-wide sample indices of a window, permuted; 4 bytes each where they fit."""
        dtype = np.uint32 if len(self) <= 2**32 else np.int64
        indices = np.concatenate(
            [
                np.arange(self.ends[shard] - self.sizes[shard], self.ends[shard], dtype=dtype)
                for shard in self._windows(epoch)[1][window]
            ]
        )
        self._random(epoch, window).shuffle(indices)
        return indices

    def _random(self, *place: int) -> np.random.Generator:
        spawn_key = (self.number,) if self.number else ()
        return np.random.default_rng(
            np.random.SeedSequence((self.seed, *place), spawn_key=spawn_key)
        )
