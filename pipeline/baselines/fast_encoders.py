"""Exact, leaner forward passes of transformers' encoder attention, mixed into its classes.

Same weights, same result. Attention weights are not returned.

Shapes: B rows, L positions, A heads, K channels per head, n positions of a block.
"""

import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.baselines.attention_in_parts import attend_in_parts
from pipeline.baselines.attention_patterns import MASKED, AllKeys, ListedBlocks

LED_BLOCK = 128
"""Positions of a block in LED's windows: smaller ones see fewer keys beyond the window."""


class _Worded:
    """What all mixins say of their kernel."""

    training: bool
    dropout: Any
    pattern = "blocks"

    @property
    def kernel(self) -> str:
        """In words; weights are dropped by plain products, part by part."""
        return f"{self.pattern}, {'products in parts' if self.drop else 'sdpa'}"

    @property
    def drop(self) -> float:
        """The current dropout probability of attention weights."""
        return self.dropout if self.training else 0.0


class FastT5Attention(_Worded):
    """T5's: the encoder's scores exist in parts, and its bias by distance only."""

    pattern = "all keys"
    is_decoder: bool
    config: Any

    @property
    def kernel(self) -> str:
        """In words; the decoder's is transformers' own."""
        return self.config._attn_implementation if self.is_decoder else super().kernel

    def forward(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor, None]:
        """Own pass in the encoder; cross-attention is given a bias of one zero, not of one each."""
        if self.is_decoder:
            if key_value_states is not None:
                position_bias = hidden_states.new_zeros(1, 1, 1, 1)
            return super().forward(  # type: ignore[misc]
                hidden_states, mask, key_value_states, position_bias, **others
            )
        if position_bias is None:
            length = hidden_states.shape[1]
            distance = torch.arange(1 - length, length, device=hidden_states.device)
            bucket = self._relative_position_bucket(
                distance,
                num_buckets=self.relative_attention_num_buckets,
                max_distance=self.relative_attention_max_distance,
            )
            position_bias = self.relative_attention_bias(bucket).t()
        context = attend_in_parts(
            AllKeys(None if mask is None else mask[:, 0, 0]),
            *(_heads(layer(hidden_states), self.n_heads) for layer in (self.q, self.k, self.v)),
            position_bias,
            dropout=self.drop,
        )
        return self.o(_joined(context)), position_bias, None


class FastLocalAttention(_Worded):
    """LongT5's local attention: three blocks of keys, of which a band is visible."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor,
        position_bias: Any = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Any]:
        """Mask (B, 1, L / n, n, 3 n): each position sees itself if it is real."""
        if position_bias is None:
            position_bias = _band(self), None
        real = mask[:, 0].diagonal(self.block_len, 2, 3).flatten(1)
        none = hidden_states[:, :0]
        return _longt5(self, hidden_states, none, real, position_bias), position_bias


class FastTransientGlobalAttention(_Worded):
    """LongT5's transient-global attention: as the local one, and a summary of every 16 tokens."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor,
        position_bias: Any = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Any]:
        """Mask (B, L) of 1 and 0."""
        theirs = import_module("transformers.models.longt5.modeling_longt5")
        blocks, segments = theirs._make_global_fixed_block_ids(mask, self.global_block_size)
        summaries = theirs._create_global_aggregates(hidden_states, blocks, segments.shape[1])
        if position_bias is None:
            position_bias = _band(self), self.compute_side_bias(mask, segments)
        summaries = self.global_input_layer_norm(summaries)
        return _longt5(self, hidden_states, summaries, mask.bool(), position_bias), position_bias


def _band(module: Any) -> Tensor:
    """LongT5's bias of a block for the three around it, (A, n, 3 n)."""
    size = module.block_len
    distance = torch.arange(3 * size) - size - torch.arange(size)[:, None]
    outside = (distance.abs() >= size).to(module.q.weight.device)
    return module.compute_bias(size)[0, 0].masked_fill(outside, MASKED)


def _longt5(
    module: Any, states: Tensor, summaries: Tensor, real: Tensor, bias: tuple[Tensor, Tensor | None]
) -> Tensor:
    """LongT5's encoder attention of states (B, L, H) to themselves and to summaries (B, G, H).

    Both are padded to whole blocks: there are no biases, so the projections of zeros are zeros.
    """
    size, length, count = module.block_len, states.shape[1], summaries.shape[1]
    blocks, others = -(-length // size), -(-count // size)
    padding = blocks * size - length, others * size - count
    padded = [_longer(x, more) for x, more in zip((states, summaries), padding, strict=True)]
    real = functional.pad(real[:, :length], (0, padding[0]))
    real = functional.pad(functional.pad(real, (0, count), value=True), (0, padding[1]))
    seen = torch.cat(padded, dim=1) if others else padded[0]
    queries, keys, values = (
        _heads(layer(seen), module.n_heads) for layer in (module.q, module.k, module.v)
    )
    shared, by_position = bias
    if by_position is not None:
        by_position = _longer(by_position, padding[0])
    context = attend_in_parts(
        ListedBlocks(
            _neighbours(blocks, 1, blocks + others, real.device),
            real.unflatten(1, (-1, size)),
            3 * size,
        ),
        queries[:, :, : blocks * size],
        keys.contiguous(),
        values.contiguous(),
        shared,
        by_position,
        dropout=module.drop,
    )
    return module.o(_joined(context)[:, :length])


class FastLEDSelfAttention(_Worded):
    """LED's windows, with global attention on the first token alone."""

    pattern = "windows"

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor,
        is_index_masked: Tensor,
        is_index_global_attn: Tensor,
        is_global_attn: bool,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """Mask (B, L): 0 is real, negative is padding, positive is global."""
        is_first = torch.arange(hidden_states.shape[1], device=hidden_states.device) == 0
        if not (is_index_global_attn == is_first).all():  # other global tokens
            return super().forward(  # type: ignore[misc]
                hidden_states,
                attention_mask,
                is_index_masked,
                is_index_global_attn,
                is_global_attn,
                output_attentions,
            )
        window, heads = self.one_sided_attn_window_size, self.num_heads
        size = LED_BLOCK if window % LED_BLOCK == 0 else window
        reach, blocks = window // size, hidden_states.shape[1] // size

        def projected(layer: nn.Module, states: Tensor) -> Tensor:
            return _heads(layer(states), heads)

        queries = projected(self.query, hidden_states) / math.sqrt(self.head_dim)
        # One more block of keys, whose first is the first token's.
        keys, values = (
            torch.cat([x, functional.pad(x[:, :, :1], (0, 0, 0, size - 1))], 2).contiguous()
            for x in (projected(self.key, hidden_states), projected(self.value, hidden_states))
        )
        first = functional.pad(is_index_global_attn[:, :1], (0, size - 1))
        real = torch.cat([attention_mask == 0, first], dim=1).unflatten(1, (-1, size))
        distance = torch.arange((2 * reach + 1) * size) - window - torch.arange(size)[:, None]
        outside = (distance.abs() > window).to(queries.device)
        context = attend_in_parts(
            ListedBlocks(
                _neighbours(blocks, reach, blocks + 1, queries.device), real, outside.shape[1]
            ),
            queries,
            keys,
            values,
            torch.zeros_like(outside, dtype=queries.dtype).masked_fill(outside, MASKED)[None],
            None,
            dropout=self.drop,
        )
        own = functional.scaled_dot_product_attention(
            projected(self.query_global, hidden_states[:, :1]),
            projected(self.key_global, hidden_states),
            projected(self.value_global, hidden_states),
            ~is_index_masked[:, None, None],
            dropout_p=self.drop,
        )
        return (_joined(torch.cat([own, context[:, :, 1:]], 2)),)


class FastBigBirdAttention(_Worded):
    """BigBird-Pegasus's encoder: blocks if the source is long enough, else all keys."""

    attention_type: str

    @property
    def kernel(self) -> str:
        """In words."""
        return "blocks, sdpa" if self.attention_type == "block_sparse" else "sdpa"

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        band_mask: Tensor | None = None,
        from_mask: Tensor | None = None,
        to_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Masks (B, 1, L, 1) and (B, 1, 1, L) of blocks, or (B, 1, L, L) of all keys."""
        inner = self.self
        heads = inner.num_attention_heads
        layers = inner.query, inner.key, inner.value
        queries, keys, values = (_heads(layer(hidden_states), heads) for layer in layers)
        if to_mask is None or from_mask is None:
            drop = inner.dropout.p if inner.training else 0.0
            attend = functional.scaled_dot_product_attention
            context = attend(queries, keys, values, attention_mask, drop)
        else:
            context = _bigbird(inner, queries, keys, values, to_mask.bool()) * from_mask
        return self.output(_joined(context)), None


def _bigbird(inner: Any, queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """The first and the last block see all keys, the others a few blocks (B, A, L, K)."""
    size = inner.block_size
    ends = functional.scaled_dot_product_attention(
        torch.cat([queries[:, :, :size], queries[:, :, -size:]], 2), keys, values, real
    )
    listed = _bigbird_lists(inner, queries.shape[2]).to(queries.device)
    middle = attend_in_parts(
        ListedBlocks(listed, real[:, 0, 0].unflatten(1, (-1, size)), 0),
        queries[:, :, size:-size] / math.sqrt(inner.attention_head_size),
        keys.contiguous(),
        values.contiguous(),
        None,
        None,
    )
    return torch.cat([ends[:, :, :size], middle, ends[:, :, size:]], dim=2)


def _bigbird_lists(inner: Any, length: int) -> Tensor:
    """The blocks that each block but the first and last sees, (A, blocks - 2, 5 + random ones).

    The random ones are transformers': from numpy's state, seeded by the layer, in training, and
    the first block again and again in evaluation.
    """
    size, heads, count = inner.block_size, inner.num_attention_heads, inner.num_random_blocks
    blocks = length // size
    if inner.training:
        import_module("numpy").random.seed(inner.seed)
    if length in (1024, 3072, 4096):
        longest = inner.max_seqlen
        chosen = [
            inner._bigbird_block_rand_mask(longest, longest, size, size, count, last_idx=1024)
            for _ in range(heads)
        ]
    else:
        lengths, counts = inner._get_rand_attn_plan(length, size, count)
        chosen = inner._bigbird_block_rand_mask_with_head(
            from_seq_length=length,
            to_seq_length=length,
            from_block_size=size,
            to_block_size=size,
            num_heads=heads,
            plan_from_length=lengths,
            plan_num_rand_blocks=counts,
        )
    own = torch.arange(1, blocks - 1)[:, None]
    near = torch.cat([torch.zeros_like(own), own - 1, own, own + 1], dim=1)
    last = torch.full_like(own, blocks - 1)
    near[0, 1], last[-1] = -1, -1  # the second block's first and the second last's last: twice
    fixed = torch.cat([near, last], dim=1).expand(heads, -1, -1)
    random = torch.stack([torch.as_tensor(of_head[: blocks - 2]) for of_head in chosen])
    return torch.cat([fixed, random.long()], dim=2)


def _neighbours(blocks: int, reach: int, of_keys: int, device: torch.device) -> Tensor:
    """Each block's neighbours, `reach` to each side, and all blocks of keys after the last one."""
    near = torch.arange(blocks)[:, None] + torch.arange(-reach, reach + 1)
    near[near >= blocks] = -1
    near.clamp_(min=-1)
    others = torch.arange(blocks, of_keys).expand(blocks, -1)
    return torch.cat([near, others], dim=1)[None].to(device)


def _longer(x: Tensor, more: int) -> Tensor:
    """(.., L, H) with more positions, of zeros; itself if there are none (torch would copy it)."""
    return functional.pad(x, (0, 0, 0, more)) if more else x


def _heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, A K) -> (B, A, L, K)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    """(B, A, L, K) -> (B, L, A K)."""
    return x.transpose(1, 2).flatten(2)
