"""The decoder's attention, in T5's style: no biases, no scaling, one learned relative bias.

Shapes: B batch, T target positions, S attended positions, A heads, K channels per head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import LocostConfig


class Attention(nn.Module):
    """The projections of multi-head attention; keys and values may come from anywhere."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.num_heads, config.dropout
        inner = config.num_heads * config.head_dim
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, A, T, K)."""
        return self.split(self.q(x)).transpose(1, 2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, H) -> keys and values (B, A, S, K)."""
        return self.split(self.k(x)).transpose(1, 2), self.split(self.v(x)).transpose(1, 2)

    def output(self, context: Tensor) -> Tensor:
        """Each head's weighted sum of values (B, A, T, K) -> (B, T, H)."""
        return self.o(context.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, T, H) attends; the mask, of booleans or added numbers, spreads to (B, A, T, S)."""
        return self.output(attend(self.queries(x), keys, values, mask, dropout=self.drop))

    @property
    def drop(self) -> float:
        """The probability that an attention weight is dropped now."""
        return self.dropout if self.training else 0.0

    def split(self, x: Tensor) -> Tensor:
        """(..., A K) -> (..., A, K)."""
        return x.unflatten(-1, (self.heads, -1))


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k^T + mask) v, unscaled: (B, A, T, K) over (B, A, S, K) -> (B, A, T, K)."""
    return functional.scaled_dot_product_attention(
        queries, keys, values, mask, dropout_p=dropout, is_causal=causal, scale=1.0
    )


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
