"""Bytes that a process sends where several share a source (pipeline/model/sequence.py).

As `ConnectedGroup.bytes_sent` counts them: all but the process's own part; a sum is the two passes
of a ring. Encoder blocks exchange positions for channels and back, decoder blocks merge the
attention to the source; the backward pass does each again, and so do blocks that are recomputed.
"""

from pipeline.estimation.activations import PaddedShape
from pipeline.model import LocostConfig
from pipeline.model.parameter_counts import FP32


def exchanged_positions(
    config: LocostConfig, product_bytes: int, recompute: bool, batch: PaddedShape, processes: int
) -> int:
    """Of all encoder blocks, for forward and backward of a micro-batch: each way, in the type of
    matrix products, the H channels of n / P positions."""
    rows = batch.samples * (2 if config.ssm_projections == "complex" else 1)
    positions = batch.part(processes).source
    part = product_bytes * rows * config.d_model * positions
    ways = 6 if recompute else 4
    return config.encoder_layers * ways * (part * (processes - 1) // processes)


def merged_attention(
    config: LocostConfig, recompute: bool, batch: PaddedShape, processes: int
) -> int:
    """Of all decoder blocks, for forward and backward of a micro-batch, in fp32: the log-sum-exp of
    each head, and the sums of contexts and of their gradients; they do not grow with the source."""
    heads = batch.targets * config.num_heads
    summed = 2 * FP32 * heads * config.head_dim * (processes - 1) // processes
    forward = FP32 * heads * (processes - 1) + summed
    return config.decoder_layers * (forward * (2 if recompute else 1) + summed)


def sequence_bytes(
    config: LocostConfig, product_bytes: int, recompute: bool, batch: PaddedShape, processes: int
) -> int:
    """Bytes that each of the processes sends for forward and backward of a micro-batch."""
    if processes == 1:
        return 0
    positions = exchanged_positions(config, product_bytes, recompute, batch, processes)
    return positions + merged_attention(config, recompute, batch, processes)
