"""Means over examples with bootstrap intervals."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.evaluation.rouge import CONFIDENCE, RESAMPLES, Interval


def intervals(
    examples: Sequence[Mapping[str, float]], scale: float = 1.0, seed: int = 0
) -> dict[str, Interval]:
    """For each name its mean over the examples, times `scale`, and the interval's ends.

    Percentile bootstrap: each resample weighs the n examples by how often it drew them. Raises
    ValueError without examples.
    """
    if not examples:
        raise ValueError("no scores to average")
    names, n = list(examples[0]), len(examples)
    values = scale * np.array([[example[name] for name in names] for example in examples])
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(draws @ values / n, [tail, 100 - tail], axis=0)
    mean = values.mean(axis=0)
    return {
        name: Interval(value=float(mean[i]), low=float(low[i]), high=float(high[i]))
        for i, name in enumerate(names)
    }
