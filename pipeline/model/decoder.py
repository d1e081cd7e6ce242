"""The decoder: blocks of self-attention, cross-attention and a gated feed-forward.

Shapes: B documents, R = B beams rows (document * beams + beam), T target positions, L source
positions, A heads, K channels per head.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from .attention import Attention, RelativeBias, rotation
from .attention_backends import Backend
from .attention_choice import choose_backend
from .config import LocostConfig
from .cross_attention import Absorbed, Cached, Sharded, spread, step_source, whole_source
from .layers import Block, GatedFeedForward, RMSNorm, product_type, round_once
from .packed_self_attention import whole_targets
from .self_attention import FixedPast, Past
from .sequence import ALONE, SequenceGroup
from .sharded_attention import Way, choose_way, merged_attention


class Attended(Protocol):
    """The keys and values of a block's self-attention or cross-attention."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(R, T, H) -> (R, T, H)."""


class DecoderBlock(Block):
    """Three pre-norm residual sub-layers: self-attention, cross-attention, feed-forward."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.self_attention_norm = RMSNorm(config, for_products=True)
        self.self_attention = Attention(config)
        self.cross_attention_norm = RMSNorm(config, for_products=True)
        self.cross_attention = Attention(config)
        if config.cross_attention_initialisation == "copy":
            self.cross_attention.initialise_to_copy()
        self.feed_forward_norm = RMSNorm(config, for_products=True)
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
    """Blocks, the relative bias they share if any, and a final norm; the embedding is the model's.

    Attention is computed by torch until `use_attention` chooses.
    """

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.config = config
        self.attention_backend: Backend = "sdpa"
        self.relative_bias = RelativeBias(config) if config.positions == "relative" else None
        blocks = [DecoderBlock(config) for _ in range(config.decoder_layers)]
        self.blocks = cast(Iterable[DecoderBlock], nn.ModuleList(blocks))
        self.norm = RMSNorm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.sequence: SequenceGroup = ALONE
        """The processes that share the source; each has the whole target."""
        self.merged: Callable[..., Tensor] = merged_attention
        self.shared_way: Way = "blocks"
        """How the own part of a shared source is attended to."""

    def forward(self, embedded: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
        """All target positions at once.

        Embedded target (B, T, H), encoder states (B, L, H), their mask (B, L) or None
        -> (B, T, H). Of a shared source, states and mask are those of the own part.
        """
        length = embedded.shape[1]
        bias = None if self.relative_bias is None else self.relative_bias.causal(length)
        targets = whole_targets(bias, self._rotation(length, embedded), self.attention_backend)
        source: Attended = (
            whole_source(states, mask, self.attention_backend)
            if self.sequence.size == 1
            else Sharded(
                states,
                round_once(states),
                spread(mask),
                self.sequence,
                self.merged,
                self.shared_way,
            )
        )
        x = self.dropout(embedded)
        for block in self.blocks:
            x = block(x, targets, source)
        return self.dropout(self.norm(x))

    def attention_kernels(self) -> dict[str, str]:
        """The kernels of its self-attention (decoder) and cross-attention (cross), in words.

        Both in training; decoding step by step is by sdpa.
        """
        own = self.attention_backend if self.relative_bias is None else "sdpa"
        shared = self.sequence.size > 1
        return {
            "decoder": own,
            "cross": f"shared source, {self.shared_way}" if shared else self.attention_backend,
        }

    def start(
        self,
        states: Tensor,
        mask: Tensor | None,
        max_length: int,
        beams: int = 1,
        memory_budget: int | None = None,
    ) -> "DecoderState":
        """The state before the first of at most `max_length` target positions of each beam.

        Encoder states (B, L, H), their mask (B, L) or None, of the own part where processes share
        the source. `memory_budget`: bytes that the
        cross-attention's keys and values may take, beyond which the encoder states themselves are
        attended; None: half of the available memory. The states are freed if the caller holds no
        reference and they are not needed.
        """
        rows = len(states) * beams
        shape = (self.config.decoder_layers, 2, rows, self.config.num_heads, max_length)
        bias = None if self.relative_bias is None else self.relative_bias(max_length).flip(-1)
        rotation = self._rotation(max_length, states)
        dtype = product_type(states)
        held = states.new_empty((*shape, self.config.head_dim), dtype=dtype)
        past = [Past(of_block, bias, rotation) for of_block in held]
        attentions = [block.cross_attention for block in self.blocks]
        source = step_source(attentions, states, mask, memory_budget, self.sequence)
        return DecoderState(source, past, held)

    def step(self, embedded: Tensor, state: "DecoderState") -> Tensor:
        """The next target position (R, 1, H) -> (R, 1, H); advances the state by one."""
        x = self.dropout(embedded)
        for block, past, source in zip(self.blocks, state.past, state.source, strict=True):
            x = block(x, past, source)
        return self.dropout(self.norm(x))

    def _rotation(self, length: int, like: Tensor) -> Tensor | None:
        if self.config.positions == "relative":
            return None
        return rotation(self.config, length, like.dtype, like.device)


@dataclass
class DecoderState:
    """State of step-by-step decoding."""

    source: Sequence[Cached] | Sequence[Absorbed]
    """Each block's view of the source; the absorbed form is the same for all."""
    past: Sequence[Past] | Sequence[FixedPast]
    """Each block's self-attention keys and values."""
    held: Tensor
    """(blocks, 2, R, A, max_length, K): those of all blocks, of which `past` has views."""

    def select(self, rows: Tensor) -> None:
        """Row i continues from row rows[i], a beam of the same document."""
        filled = self.held[..., : self.past[0].length, :]
        filled.copy_(filled[:, :, rows])

    def restart(self) -> None:
        """Back to before the first position."""
        for past in self.past:
            past.restart()

    def describe(self) -> str:
        """The form of the cross-attention and its size, in a line."""
        first = self.source[0]
        if isinstance(first, Absorbed):
            size, form = first.states.nbytes, "absorbed into the encoder states"
        else:
            size, form = 2 * first.keys.nbytes * len(self.past), "cached keys and values"
        return f"cross-attention: {form}, {size / 2**30:.2f} GiB"


def use_attention(
    decoder: Decoder, name: str, device: torch.device, dtype: torch.dtype
) -> tuple[Backend, str]:
    """Set the backend of the decoder's attention, `attention_backend`: which, and why, in one line.

    `name`: auto, varlen, flash or sdpa. `dtype`: of matrix products, autocast's or the parameters'.
    A decoder in training mode needs a backend with its dropout. Raises as `choose_backend` does.
    """
    trained = decoder.config if decoder.training else replace(decoder.config, dropout=0.0)
    decoder.attention_backend, reason = choose_backend(name, device, dtype, trained)
    if decoder.attention_backend != "sdpa" and decoder.relative_bias is not None:
        reason += f"; self-attention by sdpa, as {decoder.attention_backend} takes no relative bias"
    return decoder.attention_backend, reason


def use_shared_attention(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> str:
    """Set how the own part of a shared source is attended to, `shared_way`; why, in one line."""
    decoder.shared_way, reason = choose_way(device, dtype, decoder.config.head_dim)
    return reason
