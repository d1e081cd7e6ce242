"""The encoder: blocks of a bidirectional state-space layer and a gated feed-forward."""

from torch import Tensor, nn

from .config import LocostConfig
from .layers import GatedFeedForward, RMSNorm
from .ssm import BidirectionalSSM


class EncoderBlock(nn.Module):
    """Two pre-norm residual sub-layers: state-space, feed-forward."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.ssm_norm = RMSNorm(config)
        self.ssm = BidirectionalSSM(config)
        self.feed_forward_norm = RMSNorm(config)
        self.feed_forward = GatedFeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, L, H), mask (B, L) or None -> (B, L, H)."""
        x = x + self.dropout(self.ssm(self.ssm_norm(x), mask))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Encoder(nn.Module):
    """Blocks and a final norm; the embedding is the model's. There are no positions to add."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.norm = RMSNorm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, embedded: Tensor, mask: Tensor | None) -> Tensor:
        """Embedded source (B, L, H), mask (B, L) or None -> encoder states (B, L, H)."""
        x = self.dropout(embedded)
        for block in self.blocks:
            x = block(x, mask)
        return self.dropout(self.norm(x))
