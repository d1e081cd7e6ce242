"""Causal self-attention of whole targets without a bias, by flash attention.

Shapes: R rows, T target positions, H = d_model, A heads, K channels per head.
"""

from dataclasses import dataclass

from torch import Tensor

from .attention import Attention
from .attention_backends import PACKED, Backend, equal_bounds
from .self_attention import Causal, project


@dataclass(frozen=True)
class PackedCausal:
    """As `Causal`, for flash attention, which takes no bias: the rows are concatenated."""

    rotation: Tensor | None
    """(T, K / 2, 2): cosine and sine of each position."""
    backend: Backend

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(R, T, H) -> (R, T, H)."""
        projected = project(attention, x, self.rotation)
        queries, keys, values = (part.transpose(1, 2).flatten(0, 1) for part in projected)
        bounds = equal_bounds(x.shape[0], x.shape[1], x.device)
        function, dropout = PACKED[self.backend], attention.drop
        context = function(queries, keys, values, bounds, bounds, causal=True, dropout=dropout)
        return attention.o(context.flatten(1)).view(x.shape)


def whole_targets(
    bias: Tensor | None, rotation: Tensor | None, backend: Backend
) -> Causal | PackedCausal:
    """The targets of a pass over all their positions; a bias (A, T, T) is left to torch."""
    if backend in PACKED and bias is None:
        return PackedCausal(rotation, backend)
    return Causal(bias, rotation)
