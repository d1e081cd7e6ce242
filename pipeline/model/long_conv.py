"""Exact two-sided convolution of any length by FFT, in one piece or by overlap-save.

Shapes: B batch, H channels (any slice of them: channels are independent), L positions, D
directions (causal, then reverse), F length of the FFT. The FFT is circular: what wraps around must
not meet a kernel lag.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# FFTs of overlap-save span this many times the kernel's lags: 4 of 6 lags' lengths are new output.
SEGMENT_LAGS = 6
SHORTEST_FFT = 1 << 14  # of overlap-save


@dataclass(frozen=True)
class Layout:
    """How a kernel of a number of lags to either side lies in the circular buffer of an FFT."""

    lags: int
    """Lags of each direction, lag 0 included."""
    size: int
    """F."""
    reverse_end: int
    """Index at which the reverse lags end, the farthest first; F where nothing is amiss."""

    @classmethod
    def of(cls, length: int, lags: int | None = None, published: bool = False) -> "Layout":
        """The layout for inputs of a length, with kernels of all its lags or of the given number.

        `published`: that of the published fused convolution, whose FFT is a power of two but whose
        reverse lags end at 2L, right only where the two are the same.
        """
        lags = length if lags is None else min(lags, length)
        if published:
            return cls(lags, 1 << (2 * length - 1).bit_length(), 2 * length)
        size = fast_fft_size(min(length + lags - 1, max(SEGMENT_LAGS * lags, SHORTEST_FFT)))
        return cls(lags, size, size)


def fast_fft_size(minimum: int) -> int:
    """The smallest 2^a 3^b 5^c that is at least `minimum`, the sizes FFT libraries do fast."""
    best = 1 << (minimum - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            rest = -(-minimum // three)
            best = min(best, three << (rest - 1).bit_length())
            three *= 3
        five *= 5
    return best


def two_sided(directions: Tensor, skip: Tensor, layout: Layout) -> Tensor:
    """One circular kernel (H, F) of the directions' lags (D, H, lags) and skip weights D (H,).

    Lag 0 counts in both directions; D * u is one more weight at lag 0.
    """
    _, channels, lags = directions.shape
    kernel = directions.new_zeros(channels, layout.size)
    kernel[:, :lags] = directions[0]
    kernel[:, 0] += skip
    if len(directions) == 2:
        kernel[:, 0] += directions[1, :, 0]
        end = layout.reverse_end
        kernel[:, end - lags + 1 : end] += directions[1, :, 1:].flip(-1)
    return kernel


def two_sided_transposed(kernel: Tensor, count: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """Gradients (D, H, lags) and (H,) of `two_sided`'s arguments from the kernel's (H, F)."""
    lags, end = layout.lags, layout.reverse_end
    directions = kernel.new_empty(count, kernel.shape[0], lags)
    directions[0] = kernel[:, :lags]
    if count == 2:
        directions[1, :, 0] = kernel[:, 0]
        directions[1, :, 1:] = kernel[:, end - lags + 1 : end].flip(-1)
    return directions, kernel[:, 0]


def convolve(u: Tensor, kernel: Tensor, layout: Layout) -> Tensor:
    """z_j = sum_l kernel[(j - l) mod F] u_l: (B, H, L) from u (B, H, L) and kernel (H, F).

    Where the FFT does not hold the whole input, by overlap-save: each segment also reads the lags
    before and after it, whose own outputs are wrapped around and left out. The result has the
    kernel's type.
    """
    length, size, overlap = u.shape[-1], layout.size, layout.lags - 1
    spectrum = torch.fft.rfft(kernel)
    if layout.reverse_end != size or size >= length + overlap:
        return torch.fft.irfft(_spectrum(u, kernel).mul_(spectrum), n=size)[..., :length]
    z = kernel.new_empty(u.shape)
    step = size - 2 * overlap
    for start in range(0, length, step):
        begin, stop = max(0, start - overlap), min(length, start + step)
        segment = _spectrum(u[..., begin : stop + overlap], kernel).mul_(spectrum)
        z[..., start:stop] = torch.fft.irfft(segment, n=size)[..., start - begin : stop - begin]
    return z


def convolve_backward(u: Tensor, grad: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `convolve` in one piece: u's (B, H, L) and the kernel's (H, F), from z's."""
    length, size = u.shape[-1], kernel.shape[-1]
    grad_spectrum = _spectrum(grad, kernel)
    products = _spectrum(u, kernel).conj_physical_().mul_(grad_spectrum)
    grad_kernel = torch.fft.irfft(products.sum(0), n=size)
    grad_spectrum.mul_(torch.fft.rfft(kernel).conj_physical_())
    return torch.fft.irfft(grad_spectrum, n=size)[..., :length], grad_kernel


def _spectrum(u: Tensor, kernel: Tensor) -> Tensor:
    """rfft of u (B, H, L), zero-padded to the kernel's length, in the kernel's type."""
    return torch.fft.rfft(u.to(kernel.dtype), n=kernel.shape[-1])
