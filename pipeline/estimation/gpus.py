"""The GPUs that an estimate knows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A card, by its maker's data sheet."""

    name: str
    memory_gib: float
    """What a process sees of it."""
    flops: float
    """Dense 16-bit matrix rate, FLOP/s."""
    watts: float
    """Mean draw in training: see `GPUS`."""


# Rates: data sheets of the SXM cards (V100: fp16, it has no bf16). Watts: the paper's mean of 190
# over its V100s and A100s; for the others ours, of 700 W the share that 190 is of the A100's 400.
GPUS = {
    "v100": Gpu("V100 32 GB", 31.7, 125e12, 190),
    "a100": Gpu("A100 80 GB", 79.1, 312e12, 190),
    "h100": Gpu("H100 80 GB", 79.1, 989e12, 330),
    "h200": Gpu("H200 141 GB", 139.8, 989e12, 330),
}
