"""Exact two-sided convolution of any length by FFT.

Shapes: B batch, H channels (any slice of them: channels are independent), L positions, F length
of the FFT. The FFT is circular, so F >= 2L - 1 keeps the L - 1 lags of either side apart.
"""

import torch
from torch import Tensor


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


def two_sided(directions: Tensor, skip: Tensor) -> Tensor:
    """One circular kernel (H, F) of causal and reverse lags (2, H, L) and skip weights D (H,).

    Lag 0 counts in both directions; D * u is one more weight at lag 0.
    """
    _, channels, length = directions.shape
    kernel = directions.new_zeros(channels, fast_fft_size(2 * length - 1))
    kernel[:, :length] = directions[0]
    kernel[:, 0] += directions[1, :, 0] + skip
    kernel[:, kernel.shape[1] - length + 1 :] = directions[1, :, 1:].flip(-1)
    return kernel


def two_sided_transposed(kernel: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Gradients (2, H, L) and (H,) of `two_sided`'s arguments from the kernel's (H, F)."""
    directions = kernel.new_empty(2, kernel.shape[0], length)
    directions[0] = kernel[:, :length]
    directions[1, :, 0] = kernel[:, 0]
    directions[1, :, 1:] = kernel[:, kernel.shape[1] - length + 1 :].flip(-1)
    return directions, kernel[:, 0]


def convolve(u: Tensor, kernel: Tensor) -> Tensor:
    """z_j = sum_l kernel[(j - l) mod F] u_l, as (B, H, L) from u (B, L, H) and kernel (H, F)."""
    length, size = u.shape[1], kernel.shape[-1]
    spectrum = _spectrum(u, kernel).mul_(torch.fft.rfft(kernel))
    return torch.fft.irfft(spectrum, n=size)[..., :length]


def convolve_backward(u: Tensor, grad: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `convolve`: u's as (B, H, L) and the kernel's (H, F), from grad (B, L, H)."""
    length, size = u.shape[1], kernel.shape[-1]
    grad_spectrum = _spectrum(grad, kernel)
    products = _spectrum(u, kernel).conj_physical_().mul_(grad_spectrum)
    grad_kernel = torch.fft.irfft(products.sum(0), n=size)
    grad_spectrum.mul_(torch.fft.rfft(kernel).conj_physical_())
    return torch.fft.irfft(grad_spectrum, n=size)[..., :length], grad_kernel


def _spectrum(u: Tensor, kernel: Tensor) -> Tensor:
    """rfft of u (B, L, H) along L, zero-padded to the kernel's length, in the kernel's type."""
    padded = kernel.new_zeros(u.shape[0], *kernel.shape)
    padded[..., : u.shape[1]] = u.transpose(1, 2)
    return torch.fft.rfft(padded)
