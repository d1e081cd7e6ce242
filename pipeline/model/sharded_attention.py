"""Cross-attention to a source whose positions the processes of a group share.

Each process attends to its own keys. With s = q k^T, a part's sum of exp(s) as its logarithm (lse)
and its softmax(s) v as o_r, the whole is o = sum of exp(lse_r - lse) o_r, where lse is the log-sum-
exp of all lse_r; a part of padding alone has lse_r = -inf and adds nothing. In backward, the part's
weights are exp(s - lse), with the lse of the whole (Liu et al. 2023, Ring Attention).

Shapes: B documents, A heads, T target positions, S source positions of the part, K channels per
head.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .attention_backends import packed_obstacle
from .choosing import relative_error, within
from .layers import at_least_fp32
from .sequence import SequenceGroup, own_seed
from .sharded_flash import flash_attention, flash_gradients

BLOCK_SCORES = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Scores computed at one time: on a CPU they should stay in cache."""
TOLERANCE = 2e-2
"""Largest error of flash attention to a part, relative to the largest value of each result."""
Way = Literal["blocks", "flash"]
"""How a process attends to its own part: blocks of scores, or torch's flash attention."""


def merged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    group: SequenceGroup,
    dropout: float = 0.0,
    way: Way = "blocks",
) -> Tensor:
    """softmax(q k^T) v over all parts of the source, unscaled; a collective.

    queries (B, A, T, K), the same on all processes, keys and values (B, A, S, K) of the own part,
    mask (B, 1, 1, S) True where it is real, None: everywhere -> (B, A, T, K), the same on all.
    `dropout`: of the weights, drawn by each process for its own part; they are divided by the sum
    of all weights before dropout, as in one process.
    """
    seed = own_seed(group) if dropout else 0
    return _MergedAttention.apply(queries, keys, values, mask, group, dropout, seed, way)


class _MergedAttention(torch.autograd.Function):
    """`merged_attention`; keeps no scores for backward."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None,
        group: SequenceGroup, dropout: float, seed: int, way: Way = "blocks",
    ) -> Tensor:  # fmt: skip
        context, lse, state = WAYS[way].attention(queries, keys, values, mask, dropout, seed)
        context, lse = merge(context, lse, group)
        ctx.save_for_backward(queries, keys, values, mask, context, lse, *state)
        ctx.group, ctx.dropout, ctx.seed, ctx.way = group, dropout, seed, way
        return context.to(queries.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, mask, context, lse, *state = ctx.saved_tensors
        # The result reached every process's loss.
        grad = ctx.group.sum(grad.to(context.dtype, copy=True).contiguous())
        with torch.autocast(grad.device.type, enabled=False):
            grads = WAYS[ctx.way].gradients(
                grad, queries, keys, values, mask, context, lse, ctx.dropout, ctx.seed, *state
            )
        return *grads, None, None, None, None, None


def merge(context: Tensor, lse: Tensor, group: SequenceGroup) -> tuple[Tensor, Tensor]:
    """The attention (..., K) and log-sum-exp (..., 1) of the whole from those of the own part; a
    collective."""
    whole = group.stack(lse).logsumexp(0)
    return group.sum(context * (lse - whole).exp()), whole


@torch.no_grad()
def own_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    dropout: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention (B, A, T, K) to the own part, and the log-sum-exp (B, A, T, 1) of its scores, of at
    least float32: zeros and -inf where no position is real.

    An online softmax: sums are relative to the largest score so far, and rescaled when a larger one
    comes (Milakov and Gimelshein 2018, algorithm 3).
    """
    with torch.autocast(queries.device.type, enabled=False):
        queries = queries.to(at_least_fp32(queries.dtype))
        lowest = torch.finfo(queries.dtype).min
        largest = torch.full_like(queries[..., :1], lowest)
        total, mixed = torch.zeros_like(largest), torch.zeros_like(queries)
        kept = Dropout(dropout, seed, queries.device)
        for block in blocks(queries, keys):
            scores = masked_scores(queries, keys[:, :, block], mask, block)
            before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
            weights, rescale = scores.sub_(largest).exp_(), (before - largest).exp_()
            total = total * rescale + weights.sum(-1, keepdim=True)
            mixed = mixed * rescale + kept(weights) @ values[:, :, block].to(weights.dtype)
        return mixed / total.clamp(min=torch.finfo(total.dtype).tiny), largest + total.log()


def own_gradients(
    grad: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    context: Tensor,
    lse: Tensor,
    dropout: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the queries, by way of the own part, and of its keys and values, from that of
    the whole attention, the attention and its log-sum-exp."""
    wide = queries.to(grad.dtype)
    # The sum of each weight times its gradient, by which the softmax's gradient is less.
    mean = (grad * context).sum(-1, keepdim=True)
    grad_queries = torch.zeros_like(wide)
    grad_keys, grad_values = torch.empty(keys.shape).to(keys), torch.empty(values.shape).to(values)
    kept = Dropout(dropout, seed, queries.device)
    for block in blocks(queries, keys):
        block_keys = keys[:, :, block].to(grad.dtype)
        weights = masked_scores(wide, block_keys, mask, block).sub_(lse).exp_()
        grad_weights = grad @ values[:, :, block].to(grad.dtype).transpose(-1, -2)
        if dropout:
            factors = kept.factors(weights)
            grad_values[:, :, block] = (weights * factors).transpose(-1, -2) @ grad
            grad_weights.mul_(factors)
        else:
            grad_values[:, :, block] = weights.transpose(-1, -2) @ grad
        grad_scores = grad_weights.sub_(mean).mul_(weights)
        grad_queries += grad_scores @ block_keys
        grad_keys[:, :, block] = grad_scores.transpose(-1, -2) @ wide
    return grad_queries.to(queries.dtype), grad_keys, grad_values


class Dropout:
    """Dropout of weights, block after block, the same again from the same seed."""

    def __init__(self, probability: float, seed: int, device: torch.device) -> None:
        self.probability = probability
        self.generator = torch.Generator(device).manual_seed(seed) if probability else None

    def factors(self, weights: Tensor) -> Tensor:
        """0 or 1 / (1 - p) for each of the next block's weights."""
        keep = 1 - self.probability
        drawn = torch.empty_like(weights).bernoulli_(keep, generator=self.generator)
        return drawn.div_(keep)

    def __call__(self, weights: Tensor) -> Tensor:
        """The next block's weights after dropout."""
        return weights * self.factors(weights) if self.probability else weights


def masked_scores(queries: Tensor, keys: Tensor, mask: Tensor | None, block: slice) -> Tensor:
    """q k^T of a block of keys, in the queries' type; -inf where the mask (B, 1, 1, S) is False."""
    scores = queries @ keys.to(queries.dtype).transpose(-1, -2)
    return scores if mask is None else scores.masked_fill_(~mask[..., block], -torch.inf)


def blocks(queries: Tensor, keys: Tensor) -> Iterator[slice]:
    """Source positions of which the scores are computed together."""
    allowed = BLOCK_SCORES.get(queries.device.type, max(BLOCK_SCORES.values()))
    size = max(1, allowed // queries[..., 0].numel())
    for start in range(0, keys.shape[2], size):
        yield slice(start, start + size)


class PartAttention(NamedTuple):
    """Attention to the own part."""

    attention: Callable[..., tuple[Tensor, Tensor, tuple[Tensor, ...]]]
    """`own_attention`, and tensors that `gradients` takes last."""
    gradients: Callable[..., tuple[Tensor, Tensor, Tensor]]


WAYS: dict[Way, PartAttention] = {
    "blocks": PartAttention(lambda *inputs: (*own_attention(*inputs), ()), own_gradients),
    "flash": PartAttention(flash_attention, flash_gradients),
}


def choose_way(device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[Way, str]:
    """Flash attention where it can run and passes its test on the device; and why, in one line."""
    obstacle = packed_obstacle(device, dtype)
    if obstacle is None:
        try:
            error = within(way_error("flash", device, dtype, head_dim), TOLERANCE)
            return "flash", f"flash (relative error {error:.1e} in {dtype} on {device})"
        except (ValueError, RuntimeError, TypeError) as problem:
            obstacle = str(problem).splitlines()[0]
    return "blocks", f"blocks (not flash: {obstacle})"


def way_error(way: Way, device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """The largest error, relative to blocks in float64, of a part's attention, log-sum-exp and
    gradients, where the rest of the source has as much weight again.

    Of three rows, one has no real position in the part.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = (5, 70, 70, 5, 5)  # queries, keys, values, the gradient, the rest's attention
    inputs = [torch.randn((3, 2, size, head_dim), generator=generator) for size in sizes]
    inputs[0] *= 2 / head_dim**0.5  # scores of a standard deviation of 2
    mask = (torch.arange(70) < torch.tensor([[70], [0], [33]]))[:, None, None].to(device)
    results = []
    for name, kind in ((way, dtype), ("blocks", torch.float64)):
        *leaves, grad, rest = (x.to(device, dtype).to(kind) for x in inputs)
        context, lse, state = WAYS[name].attention(*leaves, mask, 0.0, 0)
        whole_lse = torch.logaddexp(lse, lse.nan_to_num(neginf=0.0))
        share = (lse - whole_lse).exp()
        whole = share * context + (1 - share) * rest.to(context.dtype)
        grads = WAYS[name].gradients(
            grad.to(whole.dtype), *leaves, mask, whole, whole_lse, 0.0, 0, *state
        )
        results.append([context, lse.exp(), *grads])
    return relative_error(*results)
