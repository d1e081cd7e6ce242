"""Means over examples with bootstrap intervals."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import numpy as np

RESAMPLES = 1000
CONFIDENCE = 0.95

Derived = Mapping[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]]
"""Figures by name, each a function of the means, elementwise over resamples."""


class Interval(TypedDict):
    """A mean over examples and the bounds of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def intervals(
    examples: Sequence[Mapping[str, float]],
    scale: float = 1.0,
    seed: int = 0,
    derived: Derived | None = None,
) -> dict[str, Interval]:
    """For each name its mean over the examples, times `scale`, and the interval's bounds.

    Also for the figures `derived` from the means. Percentile bootstrap: each resample weights the n
    examples by how often it drew them. Raises ValueError when there are no examples.
    """
    if not examples:
        raise ValueError("no scores to average")
    names, n = list(examples[0]), len(examples)
    values = scale * np.array([[example[name] for name in names] for example in examples])
    draws = _draws(n, np.random.default_rng(seed))
    means = np.vstack([values.mean(axis=0), draws @ values / n])  # first the sample's
    return _bounds(dict(zip(names, means.T, strict=True)), derived)


def seed_intervals(
    groups: Mapping[str, Mapping[str, np.ndarray]],
    scale: float = 1.0,
    seed: int = 0,
    derived: Derived | None = None,
) -> dict[str, Interval]:
    """Of scores (seeds, documents), by group and name: the mean over both, with an interval over
    both, called `group/name`; and the figures `derived` from them.

    Each resample draws the documents, which all groups share, and the seeds of each group: its
    names, such as a model's own and permuted documents, are of the same trainings. Of few seeds
    the interval is too narrow, by a factor of sqrt((n - 1) / n) where seeds decide. Raises
    ValueError where the documents differ in number, or there are none.
    """
    random = np.random.default_rng(seed)
    counts = {scores.shape[1] for group in groups.values() for scores in group.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"the scores are of {sorted(counts)} documents, expected the same ones")
    documents = _draws(counts.pop(), random)  # (R, documents)
    columns = {}
    for group, names in groups.items():
        seeds = _draws(len(next(iter(names.values()))), random)  # (R, seeds)
        for name, scores in names.items():
            resampled = ((seeds @ scores) * documents).sum(axis=1) / scores.size
            columns[f"{group}/{name}"] = scale * np.append(scores.mean(), resampled)
    return _bounds(columns, derived)


def _draws(n: int, random: np.random.Generator) -> np.ndarray:
    """(RESAMPLES, n) how often each of the n members of a sample is drawn in each resample."""
    return random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)


def _bounds(columns: dict[str, np.ndarray], derived: Derived | None) -> dict[str, Interval]:
    """The intervals of figures by name, each with the sample's value before the resamples'."""
    columns |= {name: derive(columns) for name, derive in (derived or {}).items()}
    tail = 100 * (1 - CONFIDENCE) / 2
    found = {}
    for name, (mean, *resampled) in columns.items():
        low, high = np.percentile(resampled, [tail, 100 - tail])
        found[name] = Interval(value=float(mean), low=float(low), high=float(high))
    return found


def ranged(mean: Interval) -> str:
    """A mean and its interval as text: 9.75 (9.21 to 10.30)."""
    return f"{mean['value']:.2f} ({mean['low']:.2f} to {mean['high']:.2f})"


def signed(difference: Interval) -> str:
    """A difference and its interval as text: +1.23 (95 % interval +0.50 to +1.90)."""
    return (
        f"{difference['value']:+.2f} (95 % interval "
        f"{difference['low']:+.2f} to {difference['high']:+.2f})"
    )
