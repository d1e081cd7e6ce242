"""The decoder's attention, in T5's style: no biases, no scaling, one learned relative bias.

Shapes: B batch, T target positions, S attended positions, A heads, K channels per head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import LocostConfig


class Attention(nn.Module):
    """Multi-head attention over given keys and values, which a caller may cache."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.num_heads, config.dropout
        inner = config.num_heads * config.head_dim
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, H) -> keys and values (B, A, S, K)."""
        return self._split(self.k(x)), self._split(self.v(x))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, T, H) attends; the mask, of booleans or added numbers, spreads to (B, A, T, S)."""
        context = functional.scaled_dot_product_attention(
            self._split(self.q(x)),
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            scale=1.0,
        )
        return self.o(context.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class RelativeBias(nn.Module):
    """A learned number per head and bucket of distance, added to self-attention's scores."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.buckets, self.max_distance = config.relative_buckets, config.relative_max_distance
        self.weight = nn.Parameter(torch.randn(config.relative_buckets, config.num_heads))

    def forward(self, length: int) -> Tensor:
        """The bias of a position for the one d steps before it, (A, length) over d."""
        distance = torch.arange(length, device=self.weight.device)
        exact = self.buckets // 2
        ratio = torch.log(distance.clamp(min=1).double() / exact)
        far = exact + (ratio * (exact / math.log(self.max_distance / exact))).long()
        bucket = torch.where(distance < exact, distance, far.clamp(max=self.buckets - 1))
        return self.weight[bucket].t()

    def causal(self, length: int) -> Tensor:
        """The bias of i for j <= i and -inf for later ones, (A, length, length)."""
        position = torch.arange(length, device=self.weight.device)
        distance = position[:, None] - position
        return self(length)[:, distance.clamp(min=0)].masked_fill(distance < 0, -torch.inf)
