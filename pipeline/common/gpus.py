"""GPUs known to the estimates."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU, from its data sheet."""

    name: str
    memory_gib: float
    """Memory visible to a process."""
    flops: float
    """Dense 16-bit matrix rate, FLOP/s."""
    watts: float
    """Mean power draw in training: see `GPUS`."""
    bandwidth: float
    """Of its memory, bytes/s."""
    flops32: float
    """Rate in fp32 without matrix units, FLOP/s."""


# Rates: data sheets of the SXM cards (V100: fp16, it has no bf16). Watts: the paper's mean of 190
# over its V100s and A100s; for the others an assumption: the same share of 700 W that 190 is
# of the A100's 400.
GPUS = {
    "v100": Gpu("V100 32 GB", 31.7, 125e12, 190, 0.90e12, 15.7e12),
    "a100": Gpu("A100 80 GB", 79.1, 312e12, 190, 2.04e12, 19.5e12),
    "h100": Gpu("H100 80 GB", 79.1, 989e12, 330, 3.35e12, 67e12),
    "h200": Gpu("H200 141 GB", 139.8, 989e12, 330, 4.8e12, 67e12),
}

LAUNCH_SECONDS = 35e-6
"""Of the host, for a kernel: a state-space layer at 4,096 positions takes an H100 11 ms forward and
backward, at batch 1 as at batch 8 (benchmarks/h100), for 316 launches."""
ACHIEVED = 0.63
"""Share of the card's bandwidth and rates that operators reach, one after another: 191 ms at the
data sheet's took an H100 303 ms, forward and backward of 16 x (4,096 + 512) (benchmarks/h100)."""
LINK = 25e9
"""Bytes/s that a GPU sends and receives at once: a network adapter of 200 Gbit/s for each."""
NODE_LINK = 250e9
"""Bytes/s that a GPU sends and receives at once inside a node: an H100's NVLink at 0.55 of its data
sheet's 450 GB/s; an assumption, not measured."""


def peak_flops(device_name: str) -> float | None:
    """The device's dense 16-bit rate, FLOP/s; None if its name matches no known GPU."""
    return next((gpu.flops for key, gpu in GPUS.items() if key.upper() in device_name), None)
