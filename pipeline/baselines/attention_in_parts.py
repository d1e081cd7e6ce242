"""Exact attention computed in parts, whose scores are computed again in the backward pass.

As flash attention does, but with gradients for learned biases, which torch's fused kernels give
none on a CPU, and over any choice of keys. Each part is torch's scaled_dot_product_attention.

Shapes: B rows, A heads, K channels per head; a part has Y by Z matrices of N queries and S keys.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pipeline.model.layers import at_least_fp32

LARGEST_PART = 1 << 23
"""Scores that exist at one time, of which the backward pass has a few copies: 32 MiB in float32."""


class Pattern(Protocol):
    """Which queries attend to which keys, part by part; a part's type is the pattern's own."""

    def parts(self, queries: Tensor) -> Iterator[tuple[int, Any]]:
        """All (row, part) of queries (B, A, .., K)."""

    def queries(self, x: Tensor, part: Any) -> Tensor:
        """A part of a row's queries (A, .., K), as a view (Y, Z, N, K)."""

    def keys(self, x: Tensor, part: Any) -> Tensor:
        """The keys or values that a part attends to, of a row's (A, .., K): (Y, Z, S, K)."""

    def add_keys(self, total: Tensor, gradient: Tensor, part: Any) -> None:
        """Add the gradient of `keys` (Y, Z, S, K) to a row's (A, .., K)."""

    def bias(self, row: int, part: Any, *learned: Tensor | None) -> Tensor:
        """What is added to the part's scores; broadcasts to (Y, Z, N, S)."""

    def add_bias(self, totals: list[Tensor | None], row: int, part: Any, gradient: Tensor) -> None:
        """Add a part's gradient of the scores (Y, Z, N, S) to those of the learned tensors."""


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
        for number, (row, part) in enumerate(pattern.parts(queries)):
            q, k, v = _of_part(pattern, row, part, queries, keys, values)
            bias = pattern.bias(row, part, *fixed)
            if dropout:
                weights = _weights(q, k, bias)
                found = _dropped(weights, dropout, ctx.seed + number).to(v.dtype) @ v
            else:
                bias = bias.to(q.dtype)
                found = functional.scaled_dot_product_attention(q, k, v, bias, scale=1.0)
            pattern.queries(context[row], part).copy_(found)
        ctx.save_for_backward(queries, keys, values, context, *learned)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pattern: Pattern = ctx.pattern
        queries, keys, values, context, *learned = ctx.saved_tensors
        wide = at_least_fp32(queries.dtype)
        mean = (gradient.to(wide) * context).sum(-1, keepdim=True)
        by_queries = torch.empty_like(queries)
        by_keys, by_values = (torch.zeros_like(x, dtype=wide) for x in (keys, values))
        by_learned = [
            torch.zeros_like(x) if needed else None
            for x, needed in zip(learned, ctx.needs_input_grad[5:], strict=True)
        ]
        for number, (row, part) in enumerate(pattern.parts(queries)):
            q, k, v = _of_part(pattern, row, part, queries, keys, values)
            g, m = (pattern.queries(x[row], part) for x in (gradient, mean))
            weights = _weights(q, k, pattern.bias(row, part, *learned))
            by_weights = (g @ v.mT).to(wide)
            if ctx.dropout:
                used = _dropped(weights, ctx.dropout, ctx.seed + number)
                by_weights = _dropped(by_weights, ctx.dropout, ctx.seed + number)
            else:
                used = weights
            pattern.add_keys(by_values[row], used.to(g.dtype).mT @ g, part)
            by_scores = by_weights.sub_(m).mul_(weights)
            pattern.add_bias(by_learned, row, part, by_scores)
            by_scores = by_scores.to(q.dtype)
            pattern.queries(by_queries[row], part).copy_(by_scores @ k)
            pattern.add_keys(by_keys[row], by_scores.mT @ q, part)
        inputs = by_queries, by_keys.to(keys.dtype), by_values.to(values.dtype)
        return None, None, *inputs, *by_learned


def _of_part(
    pattern: Pattern, row: int, part: Any, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        pattern.queries(queries[row], part),
        pattern.keys(keys[row], part),
        pattern.keys(values[row], part),
    )


def _weights(queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
    """The softmax of a part's scores, in at least float32."""
    scores = (queries @ keys.mT).to(at_least_fp32(queries.dtype))
    return scores.add_(bias).softmax(-1)


def _dropped(x: Tensor, dropout: float, seed: int) -> Tensor:
    """x with a share of elements replaced by 0, the same ones for a seed, the rest scaled up."""
    generator = torch.Generator(x.device).manual_seed(seed)
    kept = torch.empty_like(x).bernoulli_(1 - dropout, generator=generator)
    return kept.mul_(x).div_(1 - dropout)
