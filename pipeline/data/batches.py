"""Micro-batches of one process, read in the global order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

import numpy as np

from pipeline.data.collate import MicroBatch, collate
from pipeline.data.order import GlobalOrder
from pipeline.data.planning import Plan, limited, micro_batches
from pipeline.shards import INDEX, DamagedData, Dataset, Each, Sample


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
    each: Each = map
    """How indices and samples are read: one after another, or by a pool's `map` several at once."""

    def plan(self, step: int) -> Plan:
        """The cut of global batch `step`, the same on every process."""
        refs = self.order.samples(step)
        numbers, samples = np.array(refs, np.int64).T
        shards, rows = np.empty(len(refs), np.int64), np.empty(len(refs), INDEX)
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            shards[chosen], rows[chosen] = self.datasets[number].rows(samples[chosen], self.each)
        limits = (self.source_length, self.target_length)
        lengths = limited(
            np.stack([rows["source_length"], rows["target_length"]], axis=1).astype(np.int64),
            limits,
        )
        parts, shapes = micro_batches(lengths, self.data_size * self.accumulation, limits)
        return Plan(refs, shards, rows, lengths, parts, shapes)

    def step(self, step: int) -> StepBatch:
        """This process's micro-batches of global batch `step`, one an accumulation step."""
        plan = self.plan(step)
        longest = plan.shapes[:, 1:]
        real, padded = plan.lengths.sum(axis=0), plan.shapes[:, 0] @ longest
        # Parts are sorted by cost: in each accumulation step all processes get similar ones.
        mine = plan.parts[self.data_rank :: self.data_size]
        samples = iter(self.each(partial(self._read, plan), chain.from_iterable(mine)))
        return StepBatch(
            micro_batches=[
                collate(
                    [*islice(samples, len(part))],
                    self.source_length,
                    self.target_length,
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


def validation_batches(
    dataset: Dataset,
    indices: Sequence[int],
    size: int,
    source_length: int,
    target_length: int,
    sources: Mapping[int, int] | None = None,
) -> Iterator[tuple[list[int], MicroBatch]]:
    """The samples at `indices`, sorted by length, in micro-batches of `size`, with their indices.

    `sources` replaces the source of a sample by that of another sample, by index.
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
