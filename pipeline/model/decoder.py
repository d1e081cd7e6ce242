"""The decoder: blocks of self-attention, cross-attention and a gated feed-forward.

Shapes: B batch, T target positions, L source positions, A heads, K channels per head.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from .attention import Attention, RelativeBias
from .config import LocostConfig
from .layers import GatedFeedForward, RMSNorm

KeysValues = tuple[Tensor, Tensor]


class DecoderBlock(nn.Module):
    """Three pre-norm residual sub-layers: self-attention, cross-attention, feed-forward."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.self_attention_norm = RMSNorm(config)
        self.self_attention = Attention(config)
        self.cross_attention_norm = RMSNorm(config)
        self.cross_attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config)
        self.feed_forward = GatedFeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        bias: Tensor,
        source: KeysValues,
        source_mask: Tensor | None,
        past: KeysValues | None = None,
    ) -> Tensor:
        """x (B, T, H) -> (B, T, H).

        `bias` spreads to (B, A, T, attended); `source` holds the cross-attention's keys and values
        (B, A, L, K). `past`, buffers as long as the bias's last dimension, receives the keys and
        values of x at its end and is attended in whole.
        """
        normed = self.self_attention_norm(x)
        keys, values = self.self_attention.keys_values(normed)
        if past is not None:
            for buffer, new in zip(past, (keys, values), strict=True):
                buffer[:, :, -x.shape[1] :] = new
            keys, values = past
        x = x + self.dropout(self.self_attention(normed, keys, values, bias))
        normed = self.cross_attention_norm(x)
        x = x + self.dropout(self.cross_attention(normed, *source, source_mask))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Decoder(nn.Module):
    """Blocks, the relative bias they share, and a final norm; the embedding is the model's."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.relative_bias = RelativeBias(config)
        blocks = [DecoderBlock(config) for _ in range(config.decoder_layers)]
        self.blocks = cast(Iterable[DecoderBlock], nn.ModuleList(blocks))
        self.norm = RMSNorm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, embedded: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
        """All target positions at once.

        Embedded target (B, T, H), encoder states (B, L, H), their mask (B, L) or None
        -> (B, T, H).
        """
        bias = self.relative_bias.causal(embedded.shape[1])
        source_mask = spread(mask)
        x = self.dropout(embedded)
        for block in self.blocks:
            source = block.cross_attention.keys_values(states)
            x = block(x, bias, source, source_mask)
        return self.dropout(self.norm(x))

    def start(self, states: Tensor, mask: Tensor | None, max_length: int) -> "DecoderState":
        """The state before the first of at most `max_length` target positions."""
        source = [block.cross_attention.keys_values(states) for block in self.blocks]
        past = []
        for keys, values in source:
            shape = (*keys.shape[:2], max_length, keys.shape[-1])
            past.append((keys.new_empty(shape), values.new_empty(shape)))
        return DecoderState(source, spread(mask), past, self.relative_bias(max_length).flip(-1))

    def step(self, embedded: Tensor, state: "DecoderState") -> Tensor:
        """The next target position (B, 1, H) -> (B, 1, H); the state moves on by one."""
        state.length += 1
        length = state.length
        x = self.dropout(embedded)
        bias = state.reversed_bias[:, None, -length:]
        for block, source, (keys, values) in zip(
            self.blocks, state.source, state.past, strict=True
        ):
            past = (keys[:, :, :length], values[:, :, :length])
            x = block(x, bias, source, state.source_mask, past)
        return self.dropout(self.norm(x))


@dataclass
class DecoderState:
    """What decoding position by position keeps from one step to the next."""

    source: list[KeysValues]
    """Each block's cross-attention keys and values (B, A, L, K), computed once."""
    source_mask: Tensor | None
    """(B, 1, 1, L): True where the source is real."""
    past: list[KeysValues]
    """Each block's self-attention keys and values (B, A, max_length, K), filled from the front."""
    reversed_bias: Tensor
    """(A, max_length): the relative bias from the farthest distance down to 0."""
    length: int = 0
    """Positions decoded so far."""


def spread(mask: Tensor | None) -> Tensor | None:
    """(B, L) of 1 and 0 -> booleans (B, 1, 1, L) for attention."""
    return None if mask is None else mask.bool()[:, None, None]
