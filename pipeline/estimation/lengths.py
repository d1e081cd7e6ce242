"""Micro-batches of a run, drawn from a dataset's histogram of lengths."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.data.planning import limited, micro_batches
from pipeline.estimation.activations import PaddedShape

Histogram = dict[str, list[int]]
DRAWN_STEPS = 16

# C4 (en) under gap-sentence generation, T5's tokens with EOS: 615 samples of its first files, as
# `preprocessing.pretrain` counts them (mean source 421 and target 197 tokens).
C4_SOURCES: Histogram = {
    "edges": [2**k for k in range(14)],
    "counts": [0, 0, 0, 0, 0, 3, 18, 104, 165, 185, 94, 31, 13, 2],
}
C4_TARGETS: Histogram = {
    "edges": [2**k for k in range(13)],
    "counts": [0, 0, 0, 4, 10, 73, 126, 146, 124, 84, 31, 14, 3],
}
C4_DOCUMENTS = 364_868_892
"""Rows of C4's training split."""
C4_SAMPLES = 304_000_000
"""Of them those with at least five sentences, enough for gap sentences: 83.3 %."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of sources and targets, in tokens, before truncation to a recipe's limits."""

    name: str
    sources: Histogram
    targets: Histogram

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> "Lengths":
        """The lengths of a dataset. Raises ValueError where its manifest has no histogram."""
        try:
            sources, targets = (
                manifest["lengths"][side]["histogram"] for side in ("source", "target")
            )
        except KeyError:
            raise ValueError(
                f"the manifest of {manifest['name']} has no histogram of lengths; prepare the data "
                "again, or leave out --data"
            ) from None
        return cls(manifest["name"], sources, targets)

    def longest(self, limit: int, side: str) -> int:
        """The recipe's limit; where it is 0 (no limit), the last edge."""
        histogram = self.sources if side == "source" else self.targets
        return limit or histogram["edges"][-1]

    def draw(self, samples: int, limits: tuple[int, int], seed: int) -> np.ndarray:
        """(samples, 2) source and target lengths of one global batch, truncated to the limits.

        Evenly spaced quantiles, shifted together at random; long sources have long targets, as gap
        sentences are a share of a document. Lengths are uniform within a bin.
        """
        shift = np.random.default_rng(seed).random()
        quantiles = (np.arange(samples) + shift) / samples
        columns = [_quantile(side, quantiles) for side in (self.sources, self.targets)]
        return limited(np.stack(columns, axis=1), limits)


C4 = Lengths("C4", C4_SOURCES, C4_TARGETS)


def _quantile(histogram: Histogram, quantiles: np.ndarray) -> np.ndarray:
    edges, counts = (np.array(histogram[name], np.float64) for name in ("edges", "counts"))
    cumulative = np.concatenate([[0.0], counts.cumsum() / counts.sum()])
    values = np.interp(quantiles, cumulative, np.concatenate([[edges[0] / 2], edges]))
    return np.maximum(2, np.ceil(values)).astype(np.int64)


def drawn_steps(
    lengths: Lengths, batch_size: int, parts: int, limits: tuple[int, int]
) -> Iterator[tuple[np.ndarray, list[PaddedShape]]]:
    """Global batches as the trainer cuts them: lengths, and the shapes of the micro-batches."""
    for seed in range(DRAWN_STEPS):
        batch = lengths.draw(batch_size, limits, seed)
        _, shapes = micro_batches(batch, parts, limits)
        yield batch, [PaddedShape(*shape) for shape in shapes.tolist()]


def padded_step(batch_size: int, parts: int, source: int, target: int) -> list[PaddedShape]:
    """The micro-batches of a step that pads every sample to the same lengths."""
    return [PaddedShape(-(-batch_size // parts), source, target)] * parts
