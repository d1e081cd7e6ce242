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

from .long_conv import Convolution, Layout


def kernel_spectrum(kernel: Tensor) -> Tensor:
    """FFT of kernels (H, F), so that products with it need no scaling: (H, F)."""
    return torch.fft.fft(kernel, norm="forward")


def convolve(u: Tensor, spectrum: Tensor, layout: Layout, out: Tensor) -> None:
    """`long_conv.convolve` in one piece."""
    z = torch.fft.fft(pack(u, spectrum)).mul_(spectrum)
    unpack(torch.fft.ifft(z, norm="forward"), out)


def convolve_backward(
    u: Tensor, grad: Tensor, spectrum: Tensor, layout: Layout, out: Tensor
) -> Tensor:
    """`long_conv.convolve_backward`.

    The correlation of the pairs has as its real part the sum over both rows, which is the kernel's
    gradient, and in its imaginary part their cross terms.
    """
    grad_pairs = torch.fft.fft(pack(grad, spectrum))
    products = torch.fft.fft(pack(u, spectrum)).conj_physical_().mul_(grad_pairs)
    grad_kernel = torch.fft.ifft(products.sum(0)).real
    unpack(torch.fft.ifft(grad_pairs.mul_(spectrum.conj()), norm="forward"), out)
    return grad_kernel


def pack(u: Tensor, spectrum: Tensor) -> Tensor:
    """u (B, H, L) -> complex (P, H, F): rows 2p and 2p + 1 as real and imaginary part, zeros after
    them and beside the last of an odd number; in the type of a spectrum (H, F)."""
    rows, channels, length = u.shape
    pairs = spectrum.new_zeros((rows + 1) // 2, channels, spectrum.shape[-1])
    parts = torch.view_as_real(pairs)
    parts[:, :, :length, 0] = u[0::2]
    parts[: rows // 2, :, :length, 1] = u[1::2]
    return pairs


def unpack(pairs: Tensor, out: Tensor) -> None:
    """Complex (P, H, F) -> the first L positions of their rows, into `out` (B, H, L)."""
    rows, _, length = out.shape
    parts = torch.view_as_real(pairs)
    out[0::2] = parts[:, :, :length, 0]
    out[1::2] = parts[: rows // 2, :, :length, 1]


PAIRS = Convolution(kernel_spectrum, convolve, convolve_backward)
"""Two rows in a complex FFT."""
