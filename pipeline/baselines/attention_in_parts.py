"""Exact attention computed in parts, whose scores are computed again in the backward pass.

As flash attention does, but with gradients for learned biases, which torch's fused kernels give
none on a CPU, and over any choice of keys. Each part is torch's scaled_dot_product_attention.

Shapes: B rows, A heads, K channels per head; a part has Y times A matrices of N queries and S keys.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pipeline.model.layers import at_least_fp32


class Part(NamedTuple):
    """Several whole rows, or some queries (or blocks of them) of one row."""

    rows: slice
    first: int
    last: int
    """One beyond the last."""


class Pattern(Protocol):
    """Which queries attend to which keys, part by part."""

    def parts(self, queries: Tensor) -> Iterator[Part]:
        """All parts of queries (B, A, .., K)."""

    def queries(self, x: Tensor, part: Part) -> Tensor:
        """A part of what the queries (B, A, .., K) are like: (Y, A, N, K)."""

    def put_queries(self, whole: Tensor, x: Tensor, part: Part) -> None:
        """Write (Y, A, N, K) where `queries` reads it."""

    def keys(self, x: Tensor, part: Part) -> Tensor:
        """The keys or values that a part attends to, of (B, A, .., K): (Y, A, S, K)."""

    def add_keys(self, whole: Tensor, x: Tensor, part: Part) -> None:
        """Add (Y, A, S, K) where `keys` reads it."""

    def bias(self, part: Part, *learned: Tensor | None) -> Tensor:
        """What is added to the part's scores; broadcasts to (Y, A, N, S)."""

    def add_bias(self, totals: list[Tensor | None], gradient: Tensor, part: Part) -> None:
        """Add a part's gradient of the scores (Y, A, N, S) to those of the learned tensors."""


def attend_in_parts(
    pattern: Pattern,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *learned: Tensor | None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k^T + bias) v, unscaled: (B, A, .., K) as the queries.

    `learned`: what the pattern's bias is made of. Dropped weights are drawn from the global random
    state, by one number.
    """
    return _InParts.apply(pattern, dropout, queries, keys, values, *learned)


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pattern: Pattern,
        dropout: float,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *learned: Tensor | None,
    ) -> Tensor:
        ctx.pattern, ctx.dropout = pattern, dropout
        ctx.seed = int(torch.randint(1 << 62, ())) if dropout else 0
        fixed = [None if x is None else x.detach() for x in learned]
        context = torch.empty_like(queries)
        for number, part in enumerate(pattern.parts(queries)):
            q, bias = pattern.queries(queries, part), pattern.bias(part, *fixed)
            k, v = (pattern.keys(x, part) for x in (keys, values))
            if dropout:
                weights = _dropped(_weights(q, k, bias), dropout, ctx.seed + number)
                found = weights.to(v.dtype) @ v
            else:
                bias = bias.to(q.dtype)
                found = functional.scaled_dot_product_attention(q, k, v, bias, scale=1.0)
            pattern.put_queries(context, found, part)
        ctx.save_for_backward(queries, keys, values, context, *learned)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pattern: Pattern = ctx.pattern
        queries, keys, values, context, *learned = ctx.saved_tensors
        wide = at_least_fp32(queries.dtype)
        mean = (gradient.to(wide) * context).sum(-1, keepdim=True)  # of the weights' gradients
        by_queries = torch.empty_like(queries)
        by_keys, by_values = (torch.zeros_like(x, dtype=wide) for x in (keys, values))
        by_learned = [
            torch.zeros_like(x) if needed else None
            for x, needed in zip(learned, ctx.needs_input_grad[5:], strict=True)
        ]
        for number, part in enumerate(pattern.parts(queries)):
            q, g, m = (pattern.queries(x, part) for x in (queries, gradient, mean))
            k, v = (pattern.keys(x, part) for x in (keys, values))
            weights = used = _weights(q, k, pattern.bias(part, *learned))
            by_scores = (g @ v.mT).to(wide)
            if ctx.dropout:
                used, by_scores = (
                    _dropped(x, ctx.dropout, ctx.seed + number) for x in (weights, by_scores)
                )
            pattern.add_keys(by_values, used.to(g.dtype).mT @ g, part)
            by_scores.sub_(m).mul_(weights)
            pattern.add_bias(by_learned, by_scores, part)
            by_scores = by_scores.to(q.dtype)
            pattern.put_queries(by_queries, by_scores @ k, part)
            pattern.add_keys(by_keys, by_scores.mT @ q, part)
        inputs = by_queries, by_keys.to(keys.dtype), by_values.to(values.dtype)
        return None, None, *inputs, *by_learned


def _weights(queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
    """The softmax of a part's scores, in at least float32."""
    scores = (queries @ keys.mT).to(at_least_fp32(queries.dtype))
    return scores.add_(bias).softmax(-1)


def _dropped(x: Tensor, dropout: float, seed: int) -> Tensor:
    """x with a share of elements replaced by 0, the same ones for a seed, the rest scaled up."""
    generator = torch.Generator(x.device).manual_seed(seed)
    kept = torch.empty_like(x).bernoulli_(1 - dropout, generator=generator)
    return kept.mul_(x).div_(1 - dropout)
