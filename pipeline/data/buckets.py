"""Padded lengths: few, so that kernels, plans, the allocator and compiled blocks see few shapes."""

from typing import Any

import numpy as np

FIRST, SHORT = 8, 256
"""Up to SHORT, buckets are the multiples of FIRST."""
STEPS = 32
"""Buckets from there on to each doubling: a sequence gets at most 1 / 32 of padding."""
DOUBLINGS = 19  # to 134M positions
BUCKETS = np.array(
    [*range(FIRST, SHORT, FIRST)]
    + [(STEPS + step) * SHORT // STEPS << n for n in range(DOUBLINGS) for step in range(STEPS)]
)


def bucket(length: Any) -> Any:
    """The length, or each of an array, that a sequence of that length is padded to."""
    return BUCKETS[np.searchsorted(BUCKETS, length)]
