"""The convolution against a double loop."""

import copy
import math

import pytest
import torch
from locost_golden import error

from pipeline.model import LocostConfig, long_conv
from pipeline.model.encoder import EncoderBlock
from pipeline.model.long_conv import (
    ROWS,
    Layout,
    fast_fft_size,
    kernel_spectrum,
    two_sided,
    two_sided_transposed,
)
from pipeline.model.row_pairs import PAIRS
from pipeline.model.ssm import TRANSFORMS, BidirectionalSSM


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


def convolved(u, spectrum, layout, way=ROWS):
    """The result of `convolve` in a tensor of its own."""
    z = torch.empty_like(u)
    way.convolve(u, spectrum, layout, z)
    return z


@pytest.mark.parametrize("transform", ["rows", "pairs"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 31, 97])
def test_convolution_and_gradients_are_the_double_loops(length, directions, transform):
    """Of three rows: an odd number leaves one without a partner."""
    torch.manual_seed(length)
    way = TRANSFORMS[transform]
    u = torch.randn(3, 3, length, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(directions, 3, length, dtype=torch.float64, requires_grad=True)
    skip = torch.randn(3, dtype=torch.float64, requires_grad=True)
    reverse = kernels[1] if directions == 2 else torch.zeros_like(kernels[0])
    expected = double_loop(u, kernels[0], reverse, skip)
    layout = Layout.of(length)
    spectrum = way.kernel_spectrum(two_sided(kernels.detach(), skip.detach(), layout))
    assert error(convolved(u.detach(), spectrum, layout, way), expected) < 1e-13

    grad, grad_u = torch.randn_like(expected), torch.empty_like(expected)
    wanted = torch.autograd.grad(expected, (u, kernels, skip), grad)
    grad_kernel = way.convolve_backward(u.detach(), grad, spectrum, layout, grad_u)
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
    z = convolved(u, kernel_spectrum(two_sided(kernels, skip, layout)), layout)
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
    z = convolved(u, kernel_spectrum(kernel), layout)
    # Causal lags from the farthest on, then reverse ones: conv1d reads its first tap L - 1 back.
    taps = torch.cat([kernels[0].flip(-1), kernels[1, :, 1:]], dim=-1)
    taps[:, length - 1] += kernels[1, :, 0]
    expected = torch.nn.functional.conv1d(u, taps[:, None], padding=length - 1, groups=2)
    assert error(z, expected) < 1e-12


@pytest.mark.parametrize("lags", [1, 2, 7, 30])
@pytest.mark.parametrize("length", [1, 30, 64, 65, 200])
def test_overlap_save_is_the_double_loop(length, lags, monkeypatch):
    monkeypatch.setattr(long_conv, "SHORTEST_FFT", 16)
    u = torch.randn(2, 3, length, dtype=torch.float64)
    layout = Layout.of(length, lags)
    kernels = torch.zeros(2, 3, length, dtype=torch.float64)
    kernels[..., :lags].normal_()
    skip = torch.randn(3, dtype=torch.float64)
    z = convolved(u, kernel_spectrum(two_sided(kernels[..., :lags], skip, layout)), layout)
    assert length < 200 or layout.size < length  # several segments
    assert error(z, double_loop(u, *kernels, skip)) < 1e-13


def test_a_slice_of_channels_is_convolved_alone():
    u = torch.randn(2, 6, 50, dtype=torch.float64)
    layout = Layout.of(50)
    spectrum = kernel_spectrum(torch.randn(6, layout.size, dtype=torch.float64))
    whole = convolved(u, spectrum, layout)
    assert error(convolved(u[:, 2:5], spectrum[2:5], layout), whole[:, 2:5]) < 1e-14


def test_fast_sizes_are_the_smallest_products_of_2_3_5():
    smooth = sorted(2**a * 3**b * 5**c for a in range(13) for b in range(8) for c in range(6))
    for minimum in range(1, 4000):
        assert fast_fft_size(minimum) == next(size for size in smooth if size >= minimum)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("published", [False, True])
def test_a_layer_learns_the_same_from_pairs_of_rows(rows, published):
    """float32 against the float64 layer by rows, with padding; one row has no pair."""
    torch.manual_seed(rows)
    config = LocostConfig(d_model=6, state_dim=4, published_convolution=published)
    exact = BidirectionalSSM(config).double()
    ours = BidirectionalSSM(config)
    ours.load_state_dict(exact.state_dict())
    ours.transform = "pairs"
    x, direction = torch.randn(rows, 50, 6), torch.randn(rows, 50, 6)
    mask = torch.ones(rows, 50)
    mask[0, 20:] = 0
    results = []
    for layer, dtype in ((ours, torch.float32), (exact, torch.float64)):
        leaf = x.to(dtype).requires_grad_()
        z = layer(leaf, mask)
        leaves = [leaf, *layer.parameters()]
        results.append([z, *torch.autograd.grad(z, leaves, direction.to(dtype))])
    assert all(error(a, b) < 1e-5 for a, b in zip(*results, strict=True))


def test_rows_of_a_pair_are_exact_relative_to_the_larger_and_normed_inputs_are_of_one_size():
    """The trap of pairs, and why the layer does not meet it: it normalises what it reads."""
    torch.manual_seed(0)
    u = torch.randn(2, 4, 300)
    u[1] *= 1e-4
    layout = Layout.of(300)
    kernel = two_sided(torch.randn(2, 4, 300), torch.zeros(4), layout)
    spectrum, wide = PAIRS.kernel_spectrum(kernel), kernel_spectrum(kernel.double())
    z, expected = convolved(u, spectrum, layout, PAIRS), convolved(u.double(), wide, layout)
    assert error(z, expected) < 1e-6
    assert 1e-5 < error(z[1], expected[1]) < 1e-2

    # Of a block: documents of one repeated token, of random ones, short and long, with embeddings
    # of different sizes: each row is as exact as alone.
    block = EncoderBlock(LocostConfig(d_model=64, d_ff=64, state_dim=8))
    block.ssm.transform = "pairs"
    x = torch.randn(4, 300, 64) * torch.tensor([1e-3, 1e3, 1.0, 30.0])[:, None, None]
    x[2] = x[2, :1]
    mask = torch.arange(300) < torch.tensor([300, 10, 300, 150])[:, None]
    keys = block.ssm.keys(block.ssm_norm(x), mask)
    z, alone = block.ssm.convolution(keys), copy.deepcopy(block.ssm).double()
    alone.transform = "rows"
    expected = alone.convolution(keys.detach().double())
    assert all(error(z[row], expected[row]) < 1e-5 for row in range(4))
