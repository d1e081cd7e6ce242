"""The decoder's attention in T5's style (no biases, no scaling), and its position encodings.

Shapes: B batch, T target positions, S attended positions, A heads, K channels per head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import LocostConfig
from .layers import at_least_fp32, joins_products, joint_products


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

    @torch.no_grad()
    def initialise_to_copy(self) -> None:
        """Initialise to attend to keys equal to the query, and to copy their values.

        With W_q = W_k the score of a key is greatest where it equals the query, and with W_v of
        orthonormal rows (or columns) and W_o = W_v^T the output is what was attended, projected on
        the heads' channels. States and embeddings share one basis, that of the embedding and the
        head: an attended token becomes a likely next one. After the mimetic
        initialisation of self-attention (Trockman and Kolter 2023).
        """
        self.q.weight.copy_(self.k.weight)
        nn.init.orthogonal_(self.v.weight)
        self.o.weight.copy_(self.v.weight.t())

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, A, T, K)."""
        return self.split(self.q(x)).transpose(1, 2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, H) -> keys and values (B, A, S, K)."""
        keys, values = (part.transpose(1, 2) for part in self.projected(x, self.k, self.v))
        return keys, values

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, H) -> queries, keys and values (B, A, T, K)."""
        parts = self.projected(x, self.q, self.k, self.v)
        queries, keys, values = (part.transpose(1, 2) for part in parts)
        return queries, keys, values

    def projected(self, x: Tensor, *layers: nn.Linear) -> list[Tensor]:
        """(..., H) -> the result of each layer (..., A, K)."""
        if joins_products(x, layers[0]):
            parts = joint_products(x, *layers).chunk(len(layers), dim=-1)
        else:
            parts = tuple(layer(x) for layer in layers)
        return [self.split(part) for part in parts]

    def output(self, context: Tensor) -> Tensor:
        """Each head's weighted sum of values (B, A, T, K) -> (B, T, H)."""
        return self.o(context.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, T, H) attends; the mask, boolean or additive, broadcasts to (B, A, T, S)."""
        return self.output(attend(self.queries(x), keys, values, mask, dropout=self.drop))

    @property
    def drop(self) -> float:
        """The current dropout probability of attention weights."""
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
        """The bias of i for j <= i and -inf for later ones, (A, length, length).

        Row i is a window on b[length - 1] ... b[0], -inf ..., one further left than row i - 1's.
        Repeats of that sequence cut into rows one shorter are those windows; the gradient of a
        lookup by distance instead takes a twentieth of a training step.
        """
        bias = self(length).flip(-1)
        sequence = torch.cat([bias, torch.full_like(bias, -torch.inf)], dim=-1)  # (A, 2 length)
        repeats = sequence[:, None].expand(-1, length, -1).flatten(1)
        windows = repeats[:, length - 1 : -1].unflatten(1, (length, 2 * length - 1))
        return windows[..., :length]


def rotation(config: LocostConfig, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosine and sine of each position's angles, (length, K / 2, 2), for `rotate`.

    Position t turns the i-th pair of channels by t base^(-2i/K) (Su et al. 2021, equation 15).
    """
    pair = torch.arange(config.head_dim // 2, dtype=torch.float64, device=device)
    position = torch.arange(length, dtype=torch.float64, device=device)
    angles = position[:, None] * config.rotary_base ** (-2 * pair / config.head_dim)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).to(at_least_fp32(dtype))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs of channels of (..., T, K) by the angles of T positions (T, K / 2, 2)."""
    (a, b), (cosine, sine) = x.unflatten(-1, (-1, 2)).unbind(-1), rotation.unbind(-1)
    turned = torch.stack([a * cosine - b * sine, a * sine + b * cosine], dim=-1)
    return turned.flatten(-2).to(x.dtype)
