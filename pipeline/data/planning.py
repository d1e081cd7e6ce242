"""A global batch cut into micro-batches of nearly equal padded cost, from lengths alone."""

from dataclasses import dataclass

import numpy as np

from pipeline.data.buckets import bucket
from pipeline.data.order import SampleRef


@dataclass(frozen=True)
class Plan:
    """A global batch cut for all processes, made from the index alone.

    `refs` name its N samples, `shards` (N,) and `rows` (N,) of INDEX locate them, `lengths`
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


def accumulations(batch_size: int, processes: int) -> list[int]:
    """To choose from: powers of two, up to as many micro-batches as each process has samples."""
    most = batch_size // processes
    return [*(2**k for k in range(most.bit_length())), *([most] if most & (most - 1) else [])]


def padded_cost(lengths: np.ndarray) -> int:
    """Positions computed for samples of these (source, target) lengths: count x longest sum."""
    return len(lengths) * int(lengths[:, 0].max() + lengths[:, 1].max())


def micro_batches(
    lengths: np.ndarray, parts: int, limits: tuple[int, int]
) -> tuple[list[list[int]], np.ndarray]:
    """Samples of these lengths (N, 2) cut into `parts`, and the shapes (M, 3) of the parts.

    Cut by padded lengths, each at most its limit (0: none): a sample costs what is computed of it.
    """
    padded = limited(bucket(lengths), limits)
    runs = cut(padded, parts)
    return runs, np.array([(len(run), *padded[run].max(axis=0)) for run in runs])


def cut(lengths: np.ndarray, parts: int) -> list[list[int]]:
    """Cut samples into exactly `parts` micro-batches of nearly equal padded cost, costliest first.

    `lengths` (N, 2) holds source and target lengths. Samples are sorted by length and cut into
    contiguous, non-empty runs that minimise the largest cost.
    Raises ValueError when there are fewer samples than parts.
    """
    if len(lengths) < parts:
        raise ValueError(f"{len(lengths)} samples cannot fill {parts} micro-batches")
    order = np.lexsort((lengths[:, 1], lengths[:, 0]))[::-1]
    lengths = lengths[order]
    pairs = lengths.tolist()
    low, high = int(lengths.sum(axis=1).max()), padded_cost(lengths)
    while low < high:  # the smallest limit at which the greedy cut needs at most `parts`
        limit = (low + high) // 2
        if len(_greedy(pairs, limit)) <= parts:
            high = limit
        else:
            low = limit + 1
    runs = _greedy(pairs, low)
    costs = [padded_cost(lengths[start:stop]) for start, stop in runs]
    while len(runs) < parts:  # fewer were enough: halve the costliest that can be halved
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
    """Contiguous runs of (source, target) lengths, descending in source, as long as `limit` allows.

    The limit is at least the cost of any one sample.
    """
    runs, start = [], 0
    longest_source, longest_target = pairs[0]
    for stop, (source, target) in enumerate(pairs):
        longest_target = max(longest_target, target)
        if (stop + 1 - start) * (longest_source + longest_target) > limit:
            runs.append((start, stop))
            start, longest_source, longest_target = stop, source, target
    return [*runs, (start, len(pairs))]


def limited(lengths: np.ndarray, limits: tuple[int, int]) -> np.ndarray:
    """Lengths (N, 2) after truncation to the (source, target) limits; 0: no limit."""
    bounds = [limit or np.iinfo(np.int64).max for limit in limits]
    return np.minimum(lengths, bounds)
