"""Cross-attention to the source: the encoder states, in one of several forms.

Shapes: B documents, L source positions, T target positions, H = d_model, A heads, K channels per
head. Masks are True where the source is real; None: everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import Attention, attend
from .attention_backends import PACKED, Backend, Bounds, equal_bounds, remove_padding
from .layers import RoundedOnce, at_least_fp32, product_type, round_once
from .memory import available_memory
from .sequence import ALONE, SequenceGroup
from .sharded_attention import Way, own_attention

BLOCK_TOKENS = 65536
"""Encoder states per block of `mix_blocks`."""
BUDGET_SHARE = 0.5
"""Share of the available memory that cached keys and values may take by default."""


@dataclass(frozen=True)
class Whole:
    """Encoder states, from which each block computes its keys and values when needed."""

    states: Tensor
    """(B, L, H)."""
    rounded: Tensor
    """`round_once` of them."""
    mask: Tensor | None
    """(B, 1, 1, L)."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        states = RoundedOnce.apply(self.states, self.rounded)
        return attention(x, *attention.keys_values(states), self.mask)


@dataclass(frozen=True)
class Sharded:
    """As `Whole`, of a source that the processes of a group share: the states of the own part."""

    states: Tensor
    """(B, L / P, H)."""
    rounded: Tensor
    """`round_once` of them."""
    mask: Tensor | None
    """(B, 1, 1, L / P)."""
    group: SequenceGroup
    merged: Callable[..., Tensor]
    """`merged_attention`."""
    way: Way

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H), the same on all processes."""
        states = RoundedOnce.apply(self.states, self.rounded)
        keys, values = attention.keys_values(states)
        context = self.merged(
            attention.queries(x), keys, values, self.mask, self.group, attention.drop, self.way
        )
        return attention.output(context)


@dataclass(frozen=True)
class Packed:
    """As `Whole`, for flash attention: the real states of all documents, concatenated."""

    states: Tensor
    """(M, H)."""
    rounded: Tensor
    """`round_once` of them."""
    bounds: Bounds
    backend: Backend

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        queries = attention.split(attention.q(x)).flatten(0, 1)
        states = RoundedOnce.apply(self.states, self.rounded)
        keys, values = attention.projected(states, attention.k, attention.v)
        bounds = equal_bounds(x.shape[0], x.shape[1], x.device)
        function, dropout = PACKED[self.backend], attention.drop
        context = function(queries, keys, values, bounds, self.bounds, dropout=dropout)
        return attention.o(context.flatten(1)).view(x.shape)


@dataclass(frozen=True)
class Cached:
    """One block's keys and values, computed once and shared by the beams of a document.

    Of a source that processes share, those of the own part.
    """

    keys: Tensor
    """(B, A, L, K)."""
    values: Tensor
    mask: Tensor | None
    """(B, 1, 1, L)."""
    group: SequenceGroup = ALONE

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """One position of each beam (B beams, 1, H) -> (B beams, 1, H)."""
        beams = x.view(len(self.keys), -1, x.shape[-1])
        if self.group.size == 1:
            return attention(beams, self.keys, self.values, self.mask).view(x.shape)
        queries = attention.queries(beams)
        context, lse = own_attention(queries, self.keys, self.values, self.mask)
        context = merge_parts(context, lse, self.group).to(queries.dtype)
        return attention.output(context).view(x.shape)


@dataclass(frozen=True)
class Absorbed:
    """Encoder states shared by all blocks, heads and beams, without keys and values.

    The score q . W_k x is (W_k^T q) . x, and the sum of p W_v x is W_v of the sum of p x: a block's
    projections move from L states to its few queries and contexts. 2 A H operations a state and
    query instead of 2 A K, on one copy of the states instead of two for each block.

    Of a source that processes share, the states of the own part. W_v is linear, so that contexts
    merge as those of `Cached` do: the processes of a group need not choose the same form.
    """

    states: Tensor
    """(B, L, H), in the type of matrix products."""
    mask: Tensor | None
    """(B, 1, 1, L)."""
    group: SequenceGroup = ALONE

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """One position of each beam (B beams, 1, H) -> (B beams, 1, H)."""
        queries = attention.queries(x.view(len(self.states), -1, x.shape[-1]))
        wide = at_least_fp32(queries.dtype)
        with torch.autocast(x.device.type, enabled=False):
            key_weights, value_weights = (
                part.weight.to(wide).unflatten(0, (attention.heads, -1))
                for part in (attention.k, attention.v)
            )
            folded = torch.einsum("batk,akh->bath", queries.to(wide), key_weights)
            mixed, lse = self._mix(folded.flatten(1, 2))
            context = torch.einsum("bath,akh->batk", mixed.view(folded.shape), value_weights)
            if self.group.size > 1:
                context = merge_parts(context, lse.view(*context.shape[:-1], 1), self.group)
        return attention.output(context.to(queries.dtype)).view(x.shape)

    def _mix(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """`mix_blocks`; on a CPU, where nothing is merged, faster."""
        if self.group.size > 1 or queries.device.type != "cpu":
            return mix_blocks(queries, self.states, self.mask)
        return mix_whole(queries, self.states, self.mask), queries.new_empty(0)


def merge_parts(context: Tensor, lse: Tensor, group: SequenceGroup) -> Tensor:
    """Attention (..., K) to the whole source from that to the own part and the log-sum-exp (..., 1)
    of its scores; a collective.

    One exchange, for a few queries: every process adds up all parts, in their order, so that the
    result is the same on all.
    """
    parts = group.stack(torch.cat([context, lse], dim=-1))
    return (parts[..., :-1] * parts[..., -1:].softmax(0)).sum(0)


def mix_whole(queries: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q X^T) X by torch: queries (B, M, H), states (B, L, H) -> (B, M, H).

    Its CPU kernel reads X once per head, one thread each, so the queries are split into as many
    heads as there are threads: 2 to 4 times faster than `mix_blocks`.
    """
    heads = max(n for n in range(1, torch.get_num_threads() + 1) if queries.shape[1] % n == 0)
    shared = states[:, None].expand(-1, heads, -1, -1)
    mixed = attend(queries.unflatten(1, (heads, -1)).to(states.dtype), shared, shared, mask)
    return mixed.flatten(1, 2).to(queries.dtype)


def mix_blocks(queries: Tensor, states: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """`mix_whole` by matrix products, which occupy a GPU where one head of 768 channels does not,
    and the log-sum-exp (B, M, 1) of the scores; zeros and -inf where no state is real.

    An online softmax over blocks of X: sums are relative to the largest score so far, and
    rescaled when a larger one comes (Milakov and Gimelshein 2018, algorithm 3). Queries are
    of at least float32.
    """
    largest = torch.full_like(queries[..., :1], torch.finfo(queries.dtype).min)
    total, mixed = torch.zeros_like(largest), torch.zeros_like(queries)
    size = max(1, BLOCK_TOKENS // len(states))
    for start in range(0, states.shape[1], size):
        block = states[:, start : start + size]
        scores = product(queries, block.transpose(1, 2))
        if mask is not None:
            scores = scores.masked_fill_(~mask[:, 0, :, start : start + size], -torch.inf)
        before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights, rescale = scores.sub_(largest).exp_(), (before - largest).exp_()
        total = total * rescale + weights.sum(-1, keepdim=True)
        mixed = mixed * rescale + product(weights, block)
    return mixed / total.clamp(min=torch.finfo(total.dtype).tiny), largest + total.log()


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b in a's type; on a GPU, if b's is narrower, a is rounded to it, but not the result."""
    if a.dtype == b.dtype or a.device.type == "cpu":
        return a @ b.to(a.dtype)
    return torch.bmm(a.to(b.dtype), b, out_dtype=a.dtype)


def whole_source(states: Tensor, mask: Tensor | None, backend: Backend) -> Whole | Packed:
    """The source of a pass over whole targets: states (B, L, H), their mask (B, L) or None."""
    if backend in PACKED:
        packed, bounds = remove_padding(states, mask)
        return Packed(packed, round_once(packed), bounds, backend)
    return Whole(states, round_once(states), spread(mask))


def step_source(
    attentions: Sequence[Attention],
    states: Tensor,
    mask: Tensor | None,
    memory_budget: int | None = None,
    group: SequenceGroup = ALONE,
) -> Sequence[Cached] | Sequence[Absorbed]:
    """The source of decoding step by step, one for each block's cross-attention.

    Encoder states (B, L, H), their mask (B, L) or None; those of the own part where a group shares
    the source. Keys and values are cached where they take
    at most `memory_budget` bytes (None: half of the available memory).
    """
    if memory_budget is None:
        memory_budget = int(BUDGET_SHARE * available_memory(states.device))
    if mask is not None and mask.all():
        mask = None
    if cache_bytes(attentions, states) > memory_budget:
        shared = Absorbed(states.to(product_type(states)), spread(mask), group)
        return [shared] * len(attentions)
    mask = spread(mask)
    return [Cached(*attention.keys_values(states), mask, group) for attention in attentions]


def cache_bytes(attentions: Sequence[Attention], states: Tensor) -> int:
    """Size of all cross-attentions' keys and values of states (B, L, H)."""
    positions = states.shape[0] * states.shape[1]
    channels = sum(2 * attention.k.out_features for attention in attentions)
    return positions * channels * product_type(states).itemsize


def spread(mask: Tensor | None) -> Tensor | None:
    """(B, L) of 1 and 0 -> booleans (B, 1, 1, L) for attention."""
    return None if mask is None else mask.bool()[:, None, None]
