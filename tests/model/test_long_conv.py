"""The convolution against a double loop."""

import math

import pytest
import torch
from locost_golden import error

from pipeline.model import long_conv
from pipeline.model.long_conv import (
    Layout,
    convolve,
    convolve_backward,
    fast_fft_size,
    kernel_spectrum,
    two_sided,
    two_sided_transposed,
)


def double_loop(u, causal, reverse, skip):
    """z_j = sum_{l<=j} causal[j-l] u_l + sum_{l>=j} reverse[l-j] u_l + D u_j, u (B, H, L)."""
    length = u.shape[-1]
    rows = []
    for j in range(length):
        row = skip * u[..., j]
        for k in range(j + 1):
            row = row + causal[:, j - k] * u[..., k]
        for k in range(j, length):
            row = row + reverse[:, k - j] * u[..., k]
        rows.append(row)
    return torch.stack(rows, dim=-1)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 31, 97])
def test_convolution_and_gradients_are_the_double_loops(length, directions):
    torch.manual_seed(length)
    u = torch.randn(2, 3, length, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(directions, 3, length, dtype=torch.float64, requires_grad=True)
    skip = torch.randn(3, dtype=torch.float64, requires_grad=True)
    reverse = kernels[1] if directions == 2 else torch.zeros_like(kernels[0])
    expected = double_loop(u, kernels[0], reverse, skip)
    layout = Layout.of(length)
    spectrum = kernel_spectrum(two_sided(kernels.detach(), skip.detach(), layout))
    assert error(convolve(u.detach(), spectrum, layout), expected) < 1e-13

    grad = torch.randn(2, 3, length, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, (u, kernels, skip), grad)
    grad_u, grad_kernel = convolve_backward(u.detach(), grad, spectrum, layout)
    ours = (grad_u, *two_sided_transposed(grad_kernel, directions, layout))
    assert all(error(a, b) < 1e-12 for a, b in zip(ours, wanted, strict=True))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 16, 37])
def test_the_published_fused_convolution(length):
    """Written out as LOCOST's code lays out the kernel and H3's `fftconv` multiplies it."""
    torch.manual_seed(length)
    u = torch.randn(2, 3, length, dtype=torch.float64)
    kernels = torch.randn(2, 3, length, dtype=torch.float64)
    skip = torch.randn(3, dtype=torch.float64)
    pad = torch.nn.functional.pad
    kernel = pad(kernels[0], (0, length)) + pad(kernels[1].flip(-1), (length, 0)).roll(1, -1)
    size = max(2 * 2 ** math.ceil(math.log2(length)), 16)
    spectrum = torch.fft.rfft(kernel, n=size) * torch.fft.rfft(u, n=size)
    expected = torch.fft.irfft(spectrum, n=size)[..., :length] + u * skip[:, None]
    layout = Layout.of(length, published=True)
    z = convolve(u, kernel_spectrum(two_sided(kernels, skip, layout)), layout)
    assert error(z, expected) < 1e-13
    right = error(expected, double_loop(u, *kernels, skip)) < 1e-13
    assert right == (length in (1, 8, 16))


@pytest.mark.parametrize("length", [4095, 4096, 4097, 4099])
def test_long_and_awkward_lengths_are_a_direct_convolution(length):
    """torch's conv1d, which sums directly, is the reference here."""
    torch.manual_seed(length)
    u = torch.randn(1, 2, length, dtype=torch.float64)
    kernels = torch.randn(2, 2, length, dtype=torch.float64)
    layout = Layout.of(length)
    kernel = two_sided(kernels, torch.zeros(2, dtype=torch.float64), layout)
    z = convolve(u, kernel_spectrum(kernel), layout)
    # Causal lags from the farthest on, then reverse ones: conv1d reads its first tap L - 1 back.
    taps = torch.cat([kernels[0].flip(-1), kernels[1, :, 1:]], dim=-1)
    taps[:, length - 1] += kernels[1, :, 0]
    expected = torch.nn.functional.conv1d(u, taps[:, None], padding=length - 1, groups=2)
    assert error(z, expected) < 1e-12


@pytest.mark.parametrize("lags", [1, 2, 7, 30])
@pytest.mark.parametrize("length", [1, 30, 64, 65, 200, 331])
def test_overlap_save_is_the_double_loop(length, lags, monkeypatch):
    monkeypatch.setattr(long_conv, "SHORTEST_FFT", 16)
    u = torch.randn(2, 3, length, dtype=torch.float64)
    layout = Layout.of(length, lags)
    kernels = torch.zeros(2, 3, length, dtype=torch.float64)
    kernels[..., :lags].normal_()
    skip = torch.randn(3, dtype=torch.float64)
    z = convolve(u, kernel_spectrum(two_sided(kernels[..., :lags], skip, layout)), layout)
    assert length < 200 or layout.size < length  # several segments
    assert error(z, double_loop(u, *kernels, skip)) < 1e-13


def test_a_slice_of_channels_is_convolved_alone():
    u = torch.randn(2, 6, 50, dtype=torch.float64)
    layout = Layout.of(50)
    spectrum = kernel_spectrum(torch.randn(6, layout.size, dtype=torch.float64))
    whole = convolve(u, spectrum, layout)
    assert error(convolve(u[:, 2:5], spectrum[2:5], layout), whole[:, 2:5]) < 1e-14


def test_fast_sizes_are_the_smallest_products_of_2_3_5():
    smooth = sorted(2**a * 3**b * 5**c for a in range(13) for b in range(8) for c in range(6))
    for minimum in range(1, 4000):
        assert fast_fft_size(minimum) == next(size for size in smooth if size >= minimum)
