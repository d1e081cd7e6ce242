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
        self.ssm_norm = RMSNorm(config, for_products=True)
        self.ssm = BidirectionalSSM(config)
        self.feed_forward_norm = RMSNorm(config, for_products=True)
        self.feed_forward = GatedFeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, L, H), mask (B, L) or None -> (B, L, H).

        Only the convolution looks across positions: where no gradients are kept all else goes by
        blocks of tokens, the norm once more rather than held.
        """
        if in_one_piece(x):
            normed = self.ssm_norm(x)
            return self.mix(x, normed, self.ssm.convolution(self.ssm.keys(normed, mask)))
        z = self.ssm.convolution(
            by_tokens(lambda x, mask: self.ssm.keys(self.ssm_norm(x), mask), x, mask)
        )
        return by_tokens(lambda x, z: self.mix(x, self.ssm_norm(x), z), x, z)

    def mix(self, x: Tensor, normed: Tensor, z: Tensor) -> Tensor:
        """The block's output from its input, that under the norm, and the convolved keys."""
        x = x + self.dropout(self.ssm.gate(normed, z))
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


def in_one_piece(x: Tensor) -> bool:
    """Whether (B, L, H) is computed whole: it is short, or gradients need all of it anyway."""
    return torch.is_grad_enabled() or x.shape[1] <= TOKEN_BLOCK


def by_tokens(function: Callable[..., Tensor], x: Tensor, other: Tensor | None) -> Tensor:
    """A function of (B, L, H) and (B, L, ...) that treats tokens alike, in blocks of them."""
    if in_one_piece(x):
        return function(x, other)
    length = x.shape[1]
    result = None
    for start in range(0, length, TOKEN_BLOCK):
        tokens = slice(start, start + TOKEN_BLOCK)
        part = function(x[:, tokens], None if other is None else other[:, tokens])
        if result is None:
            result = part.new_empty(x.shape[0], length, part.shape[-1])
        result[:, tokens] = part
    return cast(Tensor, result)
