"""Attention to the own part of a shared source by torch's flash attention, without padding.

The same as `own_attention` and `own_gradients` of `sharded_attention.py`, and shapes as there. M
are the real positions of all rows, concatenated.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .attention_backends import equal_bounds, remove_padding

aten: Any = torch.ops.aten


def flash_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, dropout: float, seed: int
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Attention (B, A, T, K) and log-sum-exp (B, A, T, 1) in float32, and the state of dropout."""
    rows, heads, length, _ = queries.shape
    (packed_keys, key_bounds), (packed_values, _) = (unpad(x, mask) for x in (keys, values))
    if not len(packed_keys):  # the operator refuses a part of padding alone
        lse = queries.new_full((rows, heads, length, 1), -torch.inf, dtype=torch.float32)
        return torch.zeros_like(queries, dtype=torch.float32), lse, ()
    bounds = equal_bounds(rows, length, queries.device)
    own = torch.random.fork_rng([queries.device]) if dropout else nullcontext()
    with own:
        if dropout:
            torch.manual_seed(seed)
        context, lse, *state, _ = aten._flash_attention_forward(
            unpad(queries, None)[0], packed_keys, packed_values,
            bounds.cumulative, key_bounds.cumulative, bounds.longest, key_bounds.longest,
            dropout, False, False, scale=1.0,
        )  # fmt: skip
    lse = lse.view(heads, rows, length).transpose(0, 1)
    empty = key_bounds.cumulative.diff() == 0  # rows of which the operator says inf
    lse = lse.masked_fill(empty[:, None, None], -torch.inf)
    return rows_first(context, rows).float(), lse[..., None], tuple(state)


def flash_gradients(
    grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None,
    context: Tensor, lse: Tensor, dropout: float, seed: int, *state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values; `state` is as `flash_attention` gave it."""
    rows, _, length, _ = queries.shape
    if not state:
        grads = (torch.zeros_like(x) for x in (queries, keys, values))
        return next(grads), next(grads), next(grads)
    (packed_keys, key_bounds), (packed_values, _) = (unpad(x, mask) for x in (keys, values))
    bounds = equal_bounds(rows, length, queries.device)
    of_queries, of_keys, of_values = aten._flash_attention_backward(
        unpad(grad.to(queries.dtype), None)[0], unpad(queries, None)[0],
        packed_keys, packed_values, unpad(context.to(queries.dtype), None)[0],
        lse[..., 0].transpose(0, 1).flatten(1).contiguous(),
        bounds.cumulative, key_bounds.cumulative, bounds.longest, key_bounds.longest,
        dropout, False, *state, scale=1.0,
    )  # fmt: skip
    return rows_first(of_queries, rows), pad(of_keys, keys, mask), pad(of_values, values, mask)


def unpad(x: Tensor, mask: Tensor | None) -> Any:
    """(B, A, S, K), mask (B, 1, 1, S) -> the real positions (M, A, K), and their bounds."""
    packed, bounds = remove_padding(x.transpose(1, 2), None if mask is None else mask[:, 0, 0])
    return packed.contiguous(), bounds


def pad(packed: Tensor, like: Tensor, mask: Tensor | None) -> Tensor:
    """`unpad` undone: zeros where the mask is False."""
    if mask is None:
        return rows_first(packed, len(like))
    rows, _, length, _ = like.shape
    padded = packed.new_zeros(rows * length, *packed.shape[1:])
    return rows_first(padded.index_copy_(0, mask.flatten().nonzero().squeeze(1), packed), rows)


def rows_first(packed: Tensor, rows: int) -> Tensor:
    """(B T, A, K) -> (B, A, T, K)."""
    return packed.unflatten(0, (rows, -1)).transpose(1, 2)
