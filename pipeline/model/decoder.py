"""The decoder: blocks of self-attention, cross-attention and a gated feed-forward.

Shapes: B documents, R = B beams rows (document * beams + beam), T target positions, L source
positions, A heads, K channels per head.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor, nn

from .attention import Attention, RelativeBias
from .config import LocostConfig
from .cross_attention import Cached, Whole, spread
from .layers import GatedFeedForward, RMSNorm
from .self_attention import Causal, Past


class Attended(Protocol):
    """What a block's self-attention or cross-attention looks at."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(R, T, H) -> (R, T, H)."""


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

    def forward(self, x: Tensor, targets: Attended, source: Attended) -> Tensor:
        """x (R, T, H) -> (R, T, H)."""
        normed = self.self_attention_norm(x)
        x = x + self.dropout(targets.attend(self.self_attention, normed))
        normed = self.cross_attention_norm(x)
        x = x + self.dropout(source.attend(self.cross_attention, normed))
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
        targets = Causal(self.relative_bias.causal(embedded.shape[1]))
        source = Whole(states, spread(mask))
        x = self.dropout(embedded)
        for block in self.blocks:
            x = block(x, targets, source)
        return self.dropout(self.norm(x))

    def start(
        self,
        states: Tensor,
        mask: Tensor | None,
        max_length: int,
        beams: int = 1,
        memory_budget: int | None = None,
    ) -> "DecoderState":
        """The state before the first of at most `max_length` target positions of each beam.

        Encoder states (B, L, H), their mask (B, L) or None. `memory_budget`: bytes that the
        cross-attention's keys and values may take.
        """
        spread_mask = spread(mask)
        reversed_bias = self.relative_bias(max_length).flip(-1)
        source, past = [], []
        for block in self.blocks:
            keys, values = block.cross_attention.keys_values(states)
            source.append(Cached(keys, values, spread_mask))
            shape = (len(states) * beams, keys.shape[1], max_length, keys.shape[-1])
            past.append(Past(keys.new_empty(shape), values.new_empty(shape), reversed_bias))
        return DecoderState(source, past)

    def step(self, embedded: Tensor, state: "DecoderState") -> Tensor:
        """The next target position (R, 1, H) -> (R, 1, H); the state moves on by one."""
        x = self.dropout(embedded)
        for block, past, source in zip(self.blocks, state.past, state.source, strict=True):
            x = block(x, past, source)
        return self.dropout(self.norm(x))


@dataclass
class DecoderState:
    """What decoding position by position keeps from one step to the next."""

    source: Sequence[Attended]
    """Each block's view of the source."""
    past: list[Past]
    """Each block's self-attention keys and values."""

    def select(self, rows: Tensor) -> None:
        """Row i goes on from what row rows[i], a beam of the same document, has decoded."""
        for past in self.past:
            past.select(rows)
