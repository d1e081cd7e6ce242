"""Truncation and padding of samples into a micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.data.buckets import bucket
from pipeline.data.planning import limited
from pipeline.model.locost import IGNORED
from pipeline.shards import Sample


@dataclass(frozen=True)
class MicroBatch:
    """Padded samples: `input_ids`, `attention_mask` (B, L) and `labels` (B, T), int64."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor

    def pinned(self) -> "MicroBatch":
        """A copy in page-locked memory, for transfers that overlap with computation."""
        return MicroBatch(
            self.input_ids.pin_memory(), self.attention_mask.pin_memory(), self.labels.pin_memory()
        )


def truncate(ids: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` ids (0: all); the last one, EOS, is kept."""
    if not limit or len(ids) <= limit:
        return ids
    return np.concatenate([ids[: limit - 1], ids[-1:]])


def collate(samples: Sequence[Sample], source_length: int, target_length: int) -> MicroBatch:
    """Truncate samples, and pad them to the bucket of the longest: 0 in sources, -100 in labels.

    No padding exceeds a limit (0: none).
    """
    sources = [truncate(sample.source, source_length) for sample in samples]
    targets = [truncate(sample.target, target_length) for sample in samples]
    longest = np.array([max(map(len, rows)) for rows in (sources, targets)])
    source, target = limited(bucket(longest), (source_length, target_length)).tolist()
    input_ids = np.zeros((len(samples), source), np.int64)
    labels = np.full((len(samples), target), IGNORED, np.int64)
    attention_mask = np.zeros_like(input_ids)
    for row, (ids, label_ids) in enumerate(zip(sources, targets, strict=True)):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
        labels[row, : len(label_ids)] = label_ids
    return MicroBatch(*map(torch.from_numpy, (input_ids, attention_mask, labels)))
