"""Growth with the length, as a power of it."""

from collections.abc import Sequence

import numpy as np


def fit_exponent(
    lengths: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray
) -> float:
    """The exponent p of values ~ lengths^p: the least-squares slope of their logarithms.

    Both (N,), positive, of at least two different lengths.
    """
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])
