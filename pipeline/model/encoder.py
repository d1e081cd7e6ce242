"""The encoder: blocks of a bidirectional state-space layer and a gated feed-forward."""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from .config import LocostConfig
from .layers import Block, GatedFeedForward, RMSNorm
from .sequence import ALONE, SequenceGroup, own_random
from .ssm import BidirectionalSSM

TOKEN_BLOCK = 1 << 14
"""Positions computed together in inference, unless set by `Encoder.use_token_blocks`: bounds a
block's working memory beyond its input, output and keys."""


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

        Only the convolution mixes positions: without gradients, everything else is computed in
        blocks of tokens, and the norm is recomputed rather than kept.
        """
        size = self.token_block
        if in_one_piece(x, size):
            normed = self.ssm_norm(x)
            return self.mix(x, normed, self.ssm.convolution(self.ssm.keys(normed, mask)))
        # The keys get no name here: of a shared source they are freed once they are exchanged.
        z = self.ssm.convolution(
            by_tokens(
                lambda x, mask: self.ssm.keys(self.ssm_norm(x), mask), x, mask, size,
                to_channels=True,
            )
        ).transpose(1, 2)  # fmt: skip
        return by_tokens(lambda x, z: self.mix(x, self.ssm_norm(x), z.transpose(1, 2)), x, z, size)

    def mix(self, x: Tensor, normed: Tensor, z: Tensor) -> Tensor:
        """The block's output from its input, the normed input, and the convolved keys."""
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
        self.sequence: SequenceGroup = ALONE
        """The processes that share the positions; each has its part, and a dropout of its own."""

    def forward(self, embedded: Tensor, mask: Tensor | None) -> Tensor:
        """Embedded source (B, L, H), mask (B, L) or None -> encoder states (B, L, H)."""
        with own_random(self.sequence, embedded.device, self.training):
            x = self.dropout(embedded)
            for block in self.blocks:
                x = block(x, mask)
            return by_tokens(lambda x, _: self.dropout(self.norm(x)), x, None, self.token_block)

    def keep_kernels(self, keep: bool = True) -> None:
        """Whether convolution kernels are kept between documents, as they are at first; if not,
        those of the last ones are dropped too."""
        for block in self.blocks:
            block.ssm.kept.use(keep)

    def kept_bytes(self) -> int:
        """Bytes of the kernels kept now."""
        return sum(block.ssm.kept.bytes for block in self.blocks)

    def use_token_blocks(self, size: int) -> None:
        """Set the positions computed together without gradients: fewer take less memory, very few
        more time."""
        self.token_block = size
        for block in self.blocks:
            block.token_block = size


def in_one_piece(x: Tensor, size: int) -> bool:
    """Whether (B, L, H) is computed as a whole: it is short, or gradients need all of it."""
    return torch.is_grad_enabled() or x.shape[1] <= size


def by_tokens(
    function: Callable[..., Tensor],
    x: Tensor,
    other: Tensor | None,
    size: int,
    to_channels: bool = False,
) -> Tensor:
    """A function of (B, L, H) and (B, L, ...) that treats tokens alike, in blocks of `size`.

    The result is (B, L, M), or (B, M, L) `to_channels`.
    """
    if in_one_piece(x, size):
        return function(x, other)
    length, dim = x.shape[1], -1 if to_channels else 1
    result = None
    for start in range(0, length, size):
        end = min(start + size, length)
        tokens = slice(start, end)
        part = function(x[:, tokens], None if other is None else other[:, tokens])
        if result is None:
            shape = list(part.shape)
            shape[dim] = length
            result = part.new_empty(shape)
        result.narrow(dim, start, end - start).copy_(part)
    return cast(Tensor, result)
