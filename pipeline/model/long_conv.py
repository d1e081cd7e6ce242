"""Exact two-sided convolution of any length by FFT, in one piece or by overlap-save.

Shapes: B batch, H channels (any slice of them: channels are independent), L positions, D
directions (causal, then reverse), F length of the FFT. The FFT is circular: wrapped-around values
must not overlap with kernel lags.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# FFT size of overlap-save in kernel lags: of 6 lengths, 4 are new output.
SEGMENT_LAGS = 6
SHORTEST_FFT = 1 << 14  # of overlap-save
SHORTEST_FUSED_FFT = 16  # of the published fused convolution


@dataclass(frozen=True)
class Layout:
    """Layout of a two-sided kernel in the circular buffer of an FFT."""

    lags: int
    """Lags of each direction, lag 0 included."""
    size: int
    """F."""
    reverse_end: int
    """Index at which the reverse lags end, the farthest first; F unless `published`."""

    @classmethod
    def of(cls, length: int, lags: int | None = None, published: bool = False) -> "Layout":
        """The layout for inputs of a length, with kernels of all its lags or of the given number.

        `published`: that of the published fused convolution (`fftconv` of H3, which LOCOST's code
        calls), whose FFT is a power of two, at least 16, but whose reverse lags end at 2L, right
        only where the two are the same.
        """
        lags = length if lags is None else min(lags, length)
        if published:
            size = max(SHORTEST_FUSED_FFT, 1 << (2 * length - 1).bit_length())
            return cls(lags, size, 2 * length)
        size = fast_fft_size(min(length + lags - 1, max(SEGMENT_LAGS * lags, SHORTEST_FFT)))
        return cls(lags, size, size)


def fast_fft_size(minimum: int) -> int:
    """The smallest 2^a 3^b 5^c that is at least `minimum`, for which FFTs are fast."""
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


def kernel_spectrum(kernel: Tensor) -> Tensor:
    """rfft of kernels (H, F) over F, so that products with it need no scaling: (H, F / 2 + 1)."""
    return torch.fft.rfft(kernel, norm="forward")


def convolve(u: Tensor, spectrum: Tensor, layout: Layout, out: Tensor) -> None:
    """z_j = sum_l kernel[(j - l) mod F] u_l of u (B, H, L) and the kernel's spectrum, into `out`
    (B, H, L), which may be u.

    If the FFT is shorter than input and kernel, by overlap-save: each segment also reads the lags
    before and after it, whose outputs are wrapped around and dropped.
    """
    length, size, overlap = u.shape[-1], layout.size, layout.lags - 1
    dtype = spectrum.dtype.to_real()
    if layout.reverse_end != size or size >= length + overlap:
        out.copy_(_signal(_spectrum(u, size, dtype).mul_(spectrum), size)[..., :length])
        return
    z = u.new_empty(u.shape, dtype=dtype)
    step = size - 2 * overlap
    for start in range(0, length, step):
        begin, stop = max(0, start - overlap), min(length, start + step)
        segment = _spectrum(u[..., begin : stop + overlap], size, dtype).mul_(spectrum)
        z[..., start:stop] = _signal(segment, size)[..., start - begin : stop - begin]
    out.copy_(z)


def convolve_backward(
    u: Tensor, grad: Tensor, spectrum: Tensor, layout: Layout, out: Tensor
) -> Tensor:
    """Gradients of `convolve` in one piece, from z's: u's into `out` (B, H, L), and the kernel's
    (H, F)."""
    length, size, dtype = u.shape[-1], layout.size, spectrum.dtype.to_real()
    grad_spectrum = _spectrum(grad, size, dtype)
    products = _spectrum(u, size, dtype).conj_physical_().mul_(grad_spectrum)
    grad_kernel = torch.fft.irfft(products.sum(0), n=size)
    grad_spectrum.mul_(spectrum.conj())
    out.copy_(_signal(grad_spectrum, size)[..., :length])
    return grad_kernel


def _spectrum(u: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """rfft of u (B, H, L), zero-padded to F, in a real type."""
    return torch.fft.rfft(u.to(dtype), n=size)


def _signal(spectrum: Tensor, size: int) -> Tensor:
    """The inverse of rfft without its factor 1 / F."""
    return torch.fft.irfft(spectrum, n=size, norm="forward")


class Convolution(NamedTuple):
    """A way to convolve inputs with kernels by FFT."""

    kernel_spectrum: Callable[[Tensor], Tensor]
    convolve: Callable[[Tensor, Tensor, Layout, Tensor], None]
    convolve_backward: Callable[[Tensor, Tensor, Tensor, Layout, Tensor], Tensor]


ROWS = Convolution(kernel_spectrum, convolve, convolve_backward)
"""Each row in a real FFT."""
