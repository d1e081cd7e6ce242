"""The GPU check's convolution alone, beside FlashFFTConv's published times."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from pipeline.benchmarking.gpu_rows import Row, base
from pipeline.common.units import GIB
from pipeline.distributed.device import Peak, is_out_of_memory, median_seconds
from pipeline.model.kept_kernels import BLOCK_ELEMENTS
from pipeline.model.long_conv import Layout, convolve, kernel_spectrum
from pipeline.model.ssm import BidirectionalSSM

FLASH_FFT_CONV = {
    1024: (0.29, 2.30), 4096: (1.43, 9.49), 8192: (3.58, 19.4), 16384: (12.2, 29.9),
    32768: (26.3, 84.8),
}  # fmt: skip
"""FlashFFTConv's milliseconds and those of its PyTorch baseline, by FFT size.

From the table of its README (github.com/HazyResearch/flash-fft-conv, commit 0df6d72): one H100-SXM,
forward, scaled to B 64 and H 768 (beyond 8K measured at a smaller batch). Its benchmark calls the
FFT size the sequence length, makes inputs fp16, and pads none of them; the README calls the table
gated, which adds two products by elements. Their baseline computes complex FFTs in fp32. Ours are
fp32 and ungated, of an input of half the FFT size.
"""


def published(size: int) -> Row:
    """What FlashFFTConv publishes for an FFT size, or nothing."""
    if size not in FLASH_FFT_CONV:
        return {}
    theirs, baseline = FLASH_FFT_CONV[size]
    return {"flashfftconv_fp16_gated_ms": theirs, "its_torch_gated_ms": baseline}


def long_convolution(device: torch.device, small: bool) -> Iterator[Row]:
    """The convolution alone with a given kernel, and one plain FFT over all channels; fp32.

    `ours` works in blocks of channels, as in the layer; `with_kernel` also computes the kernel.
    `fft` is the size of the FFT, which decides the time, and by which published times are named.
    """
    batch, config = 2 if small else 64, base(small)
    torch.manual_seed(0)
    module = BidirectionalSSM(config).to(device).requires_grad_(False)
    for length in (64, 512) if small else (512, 1024, 2048, 4096, 8192, 16384, 32768):
        layout = Layout.of(length)
        row: Row = {"convolution": "fp32", "L": length, "fft": layout.size, "B": batch,
                    "H": config.d_model}  # fmt: skip
        u = torch.randn(batch, config.d_model, length, device=device)
        kernel = torch.randn(config.d_model, layout.size, device=device) / length**0.5
        for name, run in (
            ("ours", partial(_by_blocks, u, kernel, layout)),
            ("with_kernel", partial(module.convolution, u)),
            ("torch", partial(_plain_convolution, u, kernel[:, :length])),
        ):
            row |= _milliseconds_or_cross(name, run, device)
        yield row if small else row | published(layout.size)


def _by_blocks(u: Tensor, kernel: Tensor, layout: Layout) -> Tensor:
    """(B, H, L), in blocks of channels of the layer's size."""
    size = max(1, BLOCK_ELEMENTS[u.device.type] // (len(u) * layout.size))
    z = torch.empty_like(u)
    for start in range(0, u.shape[1], size):
        block = slice(start, start + size)
        convolve(u[:, block], kernel_spectrum(kernel[block]), layout, z[:, block])
    return z


def _plain_convolution(u: Tensor, kernel: Tensor) -> Tensor:
    """(B, H, L) with one direction's lags (H, L), by an FFT of length 2L, the usual way."""
    length = u.shape[-1]
    spectrum = torch.fft.rfft(u, 2 * length) * torch.fft.rfft(kernel, 2 * length)
    return torch.fft.irfft(spectrum, 2 * length)[..., :length]


def _milliseconds_or_cross(name: str, run: Callable[[], Tensor], device: torch.device) -> Row:
    """Time and peak memory of a run, or a cross where it does not fit."""
    try:
        peak = Peak(device)
        seconds = median_seconds(run, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {f"{name}_cross": "out of memory"}
    return {f"{name}_ms": 1000 * seconds, f"{name}_peak_gib": peak.bytes() / GIB}
