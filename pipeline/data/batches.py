"""From a global batch to the micro-batches of one process."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipeline.data.order import GlobalOrder
from pipeline.shards import Dataset, Sample

IGNORED = -100  # label that the loss leaves out


@dataclass(frozen=True)
class MicroBatch:
    """Padded samples: `input_ids`, `attention_mask` (B, L) and `labels` (B, T), int64."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class StepBatch:
    """One process's share of a global batch, and the whole batch's counts.

    `target_tokens` and `source_tokens` count real tokens of the whole batch; `source_fill` and
    `target_fill` are the shares of real tokens among its padded positions. `lengths` (N, 2) are
    all samples' source and target lengths, `longest` (M, 2) all micro-batches' padded ones.
    """

    micro_batches: list[MicroBatch]
    target_tokens: int
    source_tokens: int
    source_fill: float
    target_fill: float
    lengths: np.ndarray
    longest: np.ndarray


def padded_cost(lengths: np.ndarray) -> int:
    """Positions computed for samples of these (source, target) lengths: count x longest sum."""
    return len(lengths) * int(lengths[:, 0].max() + lengths[:, 1].max())


def cut(lengths: np.ndarray, parts: int) -> list[list[int]]:
    """Cut samples into exactly `parts` micro-batches of nearly equal padded cost, costliest first.

    `lengths` (N, 2) holds source and target lengths. Samples are sorted by length and cut into
    contiguous, non-empty runs; the largest cost is the smallest possible for such a cut.
    Raises ValueError when there are fewer samples than parts.
    """
    if len(lengths) < parts:
        raise ValueError(f"{len(lengths)} samples cannot fill {parts} micro-batches")
    order = np.lexsort((lengths[:, 1], lengths[:, 0]))[::-1]
    lengths = lengths[order]
    low, high = 1, padded_cost(lengths)
    while low < high:  # the smallest limit under which the greedy cut needs no more than `parts`
        limit = (low + high) // 2
        runs = _greedy(lengths, limit)
        if runs is not None and len(runs) <= parts:
            high = limit
        else:
            low = limit + 1
    runs = _greedy(lengths, low)
    assert runs is not None
    costs = [padded_cost(lengths[start:stop]) for start, stop in runs]
    while len(runs) < parts:  # fewer sufficed: halve the costliest that can be halved
        splittable = [k for k, (start, stop) in enumerate(runs) if stop - start > 1]
        k = max(splittable, key=costs.__getitem__)
        start, stop = runs[k]
        middle = (start + stop) // 2
        runs[k : k + 1] = [(start, middle), (middle, stop)]
        costs[k : k + 1] = [
            padded_cost(lengths[start:middle]),
            padded_cost(lengths[middle:stop]),
        ]
    by_cost = sorted(range(parts), key=lambda k: -costs[k])
    return [order[slice(*runs[k])].tolist() for k in by_cost]


def _greedy(lengths: np.ndarray, limit: int) -> list[tuple[int, int]] | None:
    """Contiguous runs, each as long as `limit` allows; None where one sample exceeds it."""
    runs, start, longest = [], 0, np.zeros(2, dtype=np.int64)
    for stop, pair in enumerate(lengths):
        grown = np.maximum(longest, pair)
        if stop > start and (stop + 1 - start) * grown.sum() > limit:
            runs.append((start, stop))
            start, grown = stop, pair
        if grown.sum() > limit:
            return None
        longest = grown
    return [*runs, (start, len(lengths))]


def truncate(ids: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` ids (0: all), the last one, EOS, kept."""
    if not limit or len(ids) <= limit:
        return ids
    return np.concatenate([ids[: limit - 1], ids[-1:]])


def collate(
    samples: Sequence[Sample], source_length: int, target_length: int, multiple: int = 1
) -> MicroBatch:
    """Pad samples to their longest, or the next multiple; pad id 0 in sources, -100 in labels."""
    sources = [truncate(sample.source, source_length) for sample in samples]
    targets = [truncate(sample.target, target_length) for sample in samples]
    source, target = (rounded(max(map(len, rows)), multiple) for rows in (sources, targets))
    input_ids = torch.zeros(len(samples), source, dtype=torch.int64)
    labels = torch.full((len(samples), target), IGNORED, dtype=torch.int64)
    attention_mask = torch.zeros_like(input_ids)
    for row, (ids, label_ids) in enumerate(zip(sources, targets, strict=True)):
        input_ids[row, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
        attention_mask[row, : len(ids)] = 1
        labels[row, : len(label_ids)] = torch.from_numpy(label_ids.astype(np.int64))
    return MicroBatch(input_ids, attention_mask, labels)


def rounded(length: Any, multiple: int) -> Any:
    """The next multiple, from the length on."""
    return -(-length // multiple) * multiple


@dataclass(frozen=True)
class Batches:
    """Reads a dataset in the global order, as the micro-batches of process `data_rank`."""

    dataset: Dataset
    order: GlobalOrder
    data_rank: int
    data_size: int
    accumulation: int
    source_length: int = 0
    target_length: int = 0
    multiple: int = 1
    """Lengths are padded to a multiple of this."""

    def step(self, step: int) -> StepBatch:
        """This process's micro-batches of global batch `step`, one an accumulation step."""
        refs = self.order.samples(step)
        places = [self.dataset.locate(ref.sample) for ref in refs]
        rows = [self.dataset.index(shard)[row] for shard, row in places]
        lengths = _limited(
            np.array([(row["source_length"], row["target_length"]) for row in rows], np.int64),
            (self.source_length, self.target_length),
        )
        parts = cut(lengths, self.data_size * self.accumulation)
        longest = np.array([rounded(lengths[part].max(axis=0), self.multiple) for part in parts])
        padded = np.array([len(part) for part in parts]) @ longest
        # Parts come costliest first: processes that run side by side get neighbours.
        mine = parts[self.data_rank :: self.data_size]
        return StepBatch(
            micro_batches=[
                collate(
                    [
                        self.dataset.read(
                            places[k][0], int(rows[k]["offset"]), int(rows[k]["size"])
                        )
                        for k in part
                    ],
                    self.source_length,
                    self.target_length,
                    self.multiple,
                )
                for part in mine
            ],
            target_tokens=int(lengths[:, 1].sum()),
            source_tokens=int(lengths[:, 0].sum()),
            source_fill=float(lengths[:, 0].sum() / padded[0]),
            target_fill=float(lengths[:, 1].sum() / padded[1]),
            lengths=lengths,
            longest=longest,
        )


def _limited(lengths: np.ndarray, limits: tuple[int, int]) -> np.ndarray:
    """Lengths (N, 2) after truncation to the (source, target) limits, 0 meaning none."""
    bounds = [limit or np.iinfo(np.int64).max for limit in limits]
    return np.minimum(lengths, bounds)


def validation_batches(
    dataset: Dataset, indices: Sequence[int], size: int, source_length: int, target_length: int
) -> Iterator[tuple[list[int], MicroBatch]]:
    """The given samples, sorted by length, in micro-batches of `size`, with their indices."""
    ordered = sorted(indices, key=lambda i: (len(dataset[i].source), i))
    for start in range(0, len(ordered), size):
        chosen = ordered[start : start + size]
        yield chosen, collate([dataset[i] for i in chosen], source_length, target_length)
