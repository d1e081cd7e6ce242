"""The convolution with two rows of a batch in one complex FFT, for CUDA.

A real kernel leaves a + ib apart: k * (a + ib) = k * a + i (k * b). So two real rows cost one
complex transform each way, products are elementwise, and cuFFT's complex-to-real transform, which
overwrites its input and therefore copies it first, is not needed.

Errors are relative to the larger row of a pair: a row 1e-4 of its partner has 1e-3 of its own size
in error in float32. The layer's keys come from normed inputs, so rows of a channel are of one size;
padding is zero and stays within rounding of its partner's size.

Shapes: B batch, H channels, L positions, F length of the FFT, P = ceil(B / 2) pairs.
"""

import torch
from torch import Tensor


def spectrum(kernel: Tensor) -> Tensor:
    """That of a kernel (H, F), both halves, scaled by 1 / F: (H, F) complex."""
    return torch.fft.fft(kernel, norm="forward")


def convolve(u: Tensor, kernel_spectrum: Tensor, out: Tensor | None = None) -> Tensor:
    """The circular convolution of u (B, H, L), padded to F, with a kernel's `spectrum`: (B, H, L).

    In the kernel's type, or in that of `out`.
    """
    z = torch.fft.fft(pack(u, kernel_spectrum)).mul_(kernel_spectrum)
    return unpack(torch.fft.ifft(z, norm="forward"), u, out)


def convolve_backward(u: Tensor, grad: Tensor, kernel_spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `convolve`, u's (B, H, L) and the kernel's (H, F), from the result's (B, H, L).

    The kernel's is the real part of the correlation of the pairs: that is the sum over both rows,
    the imaginary part holds their cross terms.
    """
    grad_pairs = torch.fft.fft(pack(grad, kernel_spectrum))
    products = torch.fft.fft(pack(u, kernel_spectrum)).conj_physical_().mul_(grad_pairs)
    grad_kernel = torch.fft.ifft(products.sum(0)).real
    grad_pairs.mul_(kernel_spectrum.conj())
    return unpack(torch.fft.ifft(grad_pairs, norm="forward"), u), grad_kernel


def pack(u: Tensor, kernel_spectrum: Tensor) -> Tensor:
    """u (B, H, L) -> complex (P, H, F): rows 2p and 2p + 1 as real and imaginary part, zeros after
    them and beside the last of an odd number."""
    rows, channels, length = u.shape
    size = kernel_spectrum.shape[-1]
    pairs = kernel_spectrum.new_zeros((rows + 1) // 2, channels, size)
    parts = torch.view_as_real(pairs)
    parts[:, :, :length, 0] = u[0::2]
    parts[: rows // 2, :, :length, 1] = u[1::2]
    return pairs


def unpack(pairs: Tensor, like: Tensor, out: Tensor | None = None) -> Tensor:
    """Complex (P, H, F) -> the first L positions of rows as of `like` (B, H, L)."""
    rows, _, length = like.shape
    parts = torch.view_as_real(pairs)
    u = parts.new_empty(like.shape) if out is None else out
    u[0::2] = parts[:, :, :length, 0]
    u[1::2] = parts[: rows // 2, :, :length, 1]
    return u
