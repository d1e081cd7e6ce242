"""The encoder: blocks of a bidirectional state-space layer and a gated feed-forward."""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from .config import LocostConfig
from .layers import Block, GatedFeedForward, RMSNorm
from .ssm import BidirectionalSSM

TOKEN_BLOCK = 1 << 14
"""Positions computed together where no gradients are kept, unless `Encoder.use_token_blocks` says
otherwise: bounds what a block holds beside its input, output and keys."""


class EncoderBlock(Block):
    """Two pre-norm residual sub-layers: state-space, feed-forward."""

    token_block = TOKEN_BLOCK

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
        size = self.token_block
        if in_one_piece(x, size):
            normed = self.ssm_norm(x)
            return self.mix(x, normed, self.ssm.convolution(self.ssm.keys(normed, mask)))
        z = self.ssm.convolution(
            by_tokens(lambda x, mask: self.ssm.keys(self.ssm_norm(x), mask), x, mask, size)
        )
        return by_tokens(lambda x, z: self.mix(x, self.ssm_norm(x), z), x, z, size)

    def mix(self, x: Tensor, normed: Tensor, z: Tensor) -> Tensor:
        """The block's output from its input, that under the norm, and the convolved keys."""
        x = x + self.dropout(self.ssm.gate(normed, z))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Encoder(nn.Module):
    """Blocks and a final norm; the embedding is the model's. There are no positions to add."""

    token_block = TOKEN_BLOCK

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
        return by_tokens(lambda x, _: self.dropout(self.norm(x)), x, None, self.token_block)

    def use_token_blocks(self, size: int) -> None:
        """Compute so many positions together where no gradients are kept: fewer take less memory,
        and more time where they are very few."""
        self.token_block = size
        for block in self.blocks:
            block.token_block = size


def in_one_piece(x: Tensor, size: int) -> bool:
    """Whether (B, L, H) is computed whole: it is short, or gradients need all of it anyway."""
    return torch.is_grad_enabled() or x.shape[1] <= size


def by_tokens(
    function: Callable[..., Tensor], x: Tensor, other: Tensor | None, size: int
) -> Tensor:
    """A function of (B, L, H) and (B, L, ...) that treats tokens alike, in blocks of `size`."""
    if in_one_piece(x, size):
        return function(x, other)
    length = x.shape[1]
    result = None
    for start in range(0, length, size):
        tokens = slice(start, start + size)
        part = function(x[:, tokens], None if other is None else other[:, tokens])
        if result is None:
            result = part.new_empty(x.shape[0], length, part.shape[-1])
        result[:, tokens] = part
    return cast(Tensor, result)
