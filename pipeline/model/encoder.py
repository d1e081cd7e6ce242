"""The encoder: blocks of a bidirectional state-space layer and a gated feed-forward."""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from .config import LocostConfig
from .layers import Block, GatedFeedForward, RMSNorm
from .ssm import BidirectionalSSM

# Positions computed together where no gradients are kept: bounds what a block holds beside its
# input, output and keys.
TOKEN_BLOCK = 1 << 14


class EncoderBlock(Block):
    """Two pre-norm residual sub-layers: state-space, feed-forward."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.ssm_norm = RMSNorm(config)
        self.ssm = BidirectionalSSM(config)
        self.feed_forward_norm = RMSNorm(config)
        self.feed_forward = GatedFeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, L, H), mask (B, L) or None -> (B, L, H).

        Only the convolution looks across positions; all else goes by blocks of tokens.
        """
        keys = by_tokens(self.keys, x, mask)
        return by_tokens(self.mix, x, self.ssm.convolution(keys))

    def keys(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What the state-space models convolve."""
        return self.ssm.keys(self.ssm_norm(x), mask)

    def mix(self, x: Tensor, z: Tensor) -> Tensor:
        """The block's output from its input and the convolved keys."""
        x = x + self.dropout(self.ssm.gate(self.ssm_norm(x), z))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Encoder(nn.Module):
    """Blocks and a final norm; the embedding is the model's. There are no positions to add."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        blocks = [EncoderBlock(config) for _ in range(config.encoder_layers)]
        self.blocks = cast(Iterable[EncoderBlock], nn.ModuleList(blocks))
        self.norm = RMSNorm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, embedded: Tensor, mask: Tensor | None) -> Tensor:
        """Embedded source (B, L, H), mask (B, L) or None -> encoder states (B, L, H)."""
        x = self.dropout(embedded)
        for block in self.blocks:
            x = block(x, mask)
        return by_tokens(lambda x, _: self.dropout(self.norm(x)), x, None)


def by_tokens(function: Callable[..., Tensor], x: Tensor, other: Tensor | None) -> Tensor:
    """A function of (B, L, H) and (B, L, ...) that treats every token alike, in blocks of tokens.

    Whole where gradients are kept, since those need all of it anyway.
    """
    length = x.shape[1]
    if torch.is_grad_enabled() or length <= TOKEN_BLOCK:
        return function(x, other)
    result = None
    for start in range(0, length, TOKEN_BLOCK):
        tokens = slice(start, start + TOKEN_BLOCK)
        part = function(x[:, tokens], None if other is None else other[:, tokens])
        if result is None:
            result = part.new_empty(x.shape[0], length, part.shape[-1])
        result[:, tokens] = part
    return cast(Tensor, result)
