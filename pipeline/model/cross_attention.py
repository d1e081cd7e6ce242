"""What a target position attends in the source: the encoder's states, in one form or another.

Shapes: B documents, L source positions, T target positions, A heads, K channels per head.
"""

from dataclasses import dataclass

from torch import Tensor

from .attention import Attention


@dataclass(frozen=True)
class Whole:
    """Encoder states of which each block makes its keys and values when it needs them."""

    states: Tensor
    """(B, L, H)."""
    mask: Tensor | None
    """(B, 1, 1, L): True where the source is real; None: everywhere."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        return attention(x, *attention.keys_values(self.states), self.mask)


@dataclass(frozen=True)
class Cached:
    """One block's keys and values, computed once and shared by the beams of a document."""

    keys: Tensor
    """(B, A, L, K)."""
    values: Tensor
    mask: Tensor | None
    """(B, 1, 1, L): True where the source is real; None: everywhere."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """One position of each beam (B beams, 1, H) -> (B beams, 1, H)."""
        beams = x.view(len(self.keys), -1, x.shape[-1])
        return attention(beams, self.keys, self.values, self.mask).view(x.shape)


def spread(mask: Tensor | None) -> Tensor | None:
    """(B, L) of 1 and 0 -> booleans (B, 1, 1, L) for attention."""
    return None if mask is None else mask.bool()[:, None, None]
