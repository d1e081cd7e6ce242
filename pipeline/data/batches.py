"""From a global batch to the micro-batches of one process."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pipeline.data.order import GlobalOrder, SampleRef
from pipeline.shards import INDEX, DamagedData, Dataset, Sample

IGNORED = -100  # label that the loss leaves out


@dataclass(frozen=True)
class MicroBatch:
    """Padded samples: `input_ids`, `attention_mask` (B, L) and `labels` (B, T), int64."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor

    def pinned(self) -> "MicroBatch":
        """The same in page-locked memory, from which a GPU copies while it works."""
        return MicroBatch(
            self.input_ids.pin_memory(), self.attention_mask.pin_memory(), self.labels.pin_memory()
        )


@dataclass(frozen=True)
class Plan:
    """A global batch cut for all processes, from the index alone.

    `refs` name its N samples, `shards` (N,) and `rows` (N,) of INDEX say where they lie, `lengths`
    (N, 2) are their source and target lengths after truncation. `parts` are the micro-batches of
    all processes as places in the batch, costliest first; `shapes` (M, 3) their samples, source
    and target length after padding.
    """

    refs: list[SampleRef]
    shards: np.ndarray
    rows: np.ndarray
    lengths: np.ndarray
    parts: list[list[int]]
    shapes: np.ndarray


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
    pairs = lengths.tolist()
    low, high = int(lengths.sum(axis=1).max()), padded_cost(lengths)
    while low < high:  # the smallest limit under which the greedy cut needs no more than `parts`
        limit = (low + high) // 2
        if len(_greedy(pairs, limit)) <= parts:
            high = limit
        else:
            low = limit + 1
    runs = _greedy(pairs, low)
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


def _greedy(pairs: list[list[int]], limit: int) -> list[tuple[int, int]]:
    """Contiguous runs of (source, target) lengths, falling in source, as long as `limit` allows.

    The limit is at least the cost of each alone.
    """
    runs, start = [], 0
    longest_source, longest_target = pairs[0]
    for stop, (source, target) in enumerate(pairs):
        longest_target = max(longest_target, target)
        if (stop + 1 - start) * (longest_source + longest_target) > limit:
            runs.append((start, stop))
            start, longest_source, longest_target = stop, source, target
    return [*runs, (start, len(pairs))]


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
    input_ids = np.zeros((len(samples), source), np.int64)
    labels = np.full((len(samples), target), IGNORED, np.int64)
    attention_mask = np.zeros_like(input_ids)
    for row, (ids, label_ids) in enumerate(zip(sources, targets, strict=True)):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
        labels[row, : len(label_ids)] = label_ids
    return MicroBatch(*map(torch.from_numpy, (input_ids, attention_mask, labels)))


def rounded(length: Any, multiple: int) -> Any:
    """The next multiple, from the length on."""
    return -(-length // multiple) * multiple


@dataclass(frozen=True)
class Batches:
    """Reads datasets in the global order, as the micro-batches of process `data_rank`."""

    datasets: Sequence[Dataset]
    order: GlobalOrder
    data_rank: int
    data_size: int
    accumulation: int
    source_length: int = 0
    target_length: int = 0
    multiple: int = 1
    """Lengths are padded to a multiple of this."""

    def plan(self, step: int) -> Plan:
        """Global batch `step`, cut; every process works out the same."""
        refs = self.order.samples(step)
        numbers, samples = np.array(refs, np.int64).T
        shards, rows = np.empty(len(refs), np.int64), np.empty(len(refs), INDEX)
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            shards[chosen], rows[chosen] = self.datasets[number].rows(samples[chosen])
        lengths = _limited(
            np.stack([rows["source_length"], rows["target_length"]], axis=1).astype(np.int64),
            (self.source_length, self.target_length),
        )
        parts = cut(lengths, self.data_size * self.accumulation)
        shapes = [(len(part), *rounded(lengths[part].max(axis=0), self.multiple)) for part in parts]
        return Plan(refs, shards, rows, lengths, parts, np.array(shapes))

    def step(self, step: int) -> StepBatch:
        """This process's micro-batches of global batch `step`, one an accumulation step."""
        plan = self.plan(step)
        longest = plan.shapes[:, 1:]
        real, padded = plan.lengths.sum(axis=0), plan.shapes[:, 0] @ longest
        # Parts come costliest first: processes that run side by side get neighbours.
        mine = plan.parts[self.data_rank :: self.data_size]
        return StepBatch(
            micro_batches=[
                collate(
                    [self._read(plan, k) for k in part],
                    self.source_length,
                    self.target_length,
                    self.multiple,
                )
                for part in mine
            ],
            target_tokens=int(real[1]),
            source_tokens=int(real[0]),
            source_fill=float(real[0] / padded[0]),
            target_fill=float(real[1] / padded[1]),
            lengths=plan.lengths,
            longest=longest,
        )

    def _read(self, plan: Plan, place: int) -> Sample:
        dataset = self.datasets[plan.refs[place].dataset]
        shard = int(plan.shards[place])
        offset, size, *lengths = plan.rows[place].tolist()
        sample = dataset.read(shard, offset, size)
        if lengths != [len(sample.source), len(sample.target)]:
            raise DamagedData(
                f"{dataset.path / dataset.shards[shard].name}.tar is damaged at byte {offset}: "
                f"{len(sample.source)} and {len(sample.target)} ids there, its index says "
                f"{lengths[0]} and {lengths[1]}"
            )
        return sample


def _limited(lengths: np.ndarray, limits: tuple[int, int]) -> np.ndarray:
    """Lengths (N, 2) after truncation to the (source, target) limits, 0 meaning none."""
    bounds = [limit or np.iinfo(np.int64).max for limit in limits]
    return np.minimum(lengths, bounds)


def validation_batches(
    dataset: Dataset,
    indices: Sequence[int],
    size: int,
    source_length: int,
    target_length: int,
    sources: Mapping[int, int] | None = None,
) -> Iterator[tuple[list[int], MicroBatch]]:
    """The given samples, sorted by length, in micro-batches of `size`, with their indices.

    With `sources` each sample is given the source of the sample that they name for it.
    """
    samples = np.array(indices, np.int64)
    given = samples if sources is None else np.array([sources[i] for i in indices], np.int64)
    _, rows = dataset.rows(given)
    ordered = np.lexsort((samples, rows["source_length"]))
    for start in range(0, len(ordered), size):
        places = ordered[start : start + size]
        chosen = [
            replace(dataset[i], source=dataset[g].source) if sources else dataset[i]
            for i, g in zip(samples[places].tolist(), given[places].tolist(), strict=True)
        ]
        yield samples[places].tolist(), collate(chosen, source_length, target_length)
