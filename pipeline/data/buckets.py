"""Padded lengths: few, so that kernels, plans, the allocator and compiled blocks see few shapes."""

from typing import Any

import numpy as np

FIRST, SHORT = 8, 64
"""Up to SHORT, buckets are the multiples of FIRST."""
STEPS = 4
"""Buckets from there on to each doubling: at most a quarter is padding, and the convolution's FFT,
of the smallest 2^a 3^b 5^c positions from 2 x length - 1 on, has at most 0.5 % more than that."""
DOUBLINGS = 21  # to 134M positions
BUCKETS = np.array(
    [*range(FIRST, SHORT, FIRST)]
    + [(STEPS + step) * SHORT // STEPS << n for n in range(DOUBLINGS) for step in range(STEPS)]
)


def bucket(length: Any) -> Any:
    """The length, or each of an array, that a sequence of that length is padded to."""
    return BUCKETS[np.searchsorted(BUCKETS, length)]
