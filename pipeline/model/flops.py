"""Floating-point operations of the model, counted from its sizes (a multiply-add is two)."""

import math

from .config import LocostConfig
from .long_conv import fast_fft_size


def encoder_flops(config: LocostConfig, batch: int, length: int) -> dict[str, float]:
    """Forward operations by part.

    H channels, N modes, F feed-forward channels, L positions, n FFT size, each layer:
    projections 6 B L H^2, feed-forward 6 B L H F, kernel 8 H N L (once a batch; two directions),
    FFT 2.5 n log2 n per real transform and channel: two a sample, one for the kernel.
    """
    tokens, channels = batch * length, config.d_model
    size = fast_fft_size(2 * length - 1)
    transform = 2.5 * size * math.log2(size)  # of real numbers: half of a complex one's
    one = {
        "projections": 6 * tokens * channels**2,
        "feed-forward": 6 * tokens * channels * config.d_ff,
        "kernel": 8 * channels * config.state_dim * length,
        "FFT": (2 * batch + 1) * channels * transform,
    }
    return {part: float(config.encoder_layers * count) for part, count in one.items()}


def decoder_flops(config: LocostConfig, batch: int, source: int, target: int) -> dict[str, float]:
    """Forward operations by part, teacher-forced.

    I = heads x head_dim, V vocabulary, S source and T target positions, each layer: self-attention
    8 B T H I + 4 B T^2 I / 2 (causal), cross-attention 4 B (S + T) H I + 4 B T S I, feed-forward
    6 B T H F; the head 2 B T H V.
    """
    channels, inner = config.d_model, config.num_heads * config.head_dim
    tokens = batch * target
    one = {
        "self-attention": 8 * tokens * channels * inner + 2 * tokens * target * inner,
        "cross-attention": 4 * batch * (source + target) * channels * inner
        + 4 * tokens * source * inner,
        "decoder feed-forward": 6 * tokens * channels * config.d_ff,
    }
    parts = {part: float(config.decoder_layers * count) for part, count in one.items()}
    return parts | {"head": 2.0 * tokens * channels * config.vocab_size}


def training_flops(config: LocostConfig, batch: int, source: int, target: int) -> dict[str, float]:
    """Forward and backward by part: three times the forward; recomputation is not counted."""
    forward = encoder_flops(config, batch, source) | decoder_flops(config, batch, source, target)
    return {part: 3 * count for part, count in forward.items()}
