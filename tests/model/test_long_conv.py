"""The convolution against a double loop."""

import pytest
import torch
from locost_golden import error

from pipeline.model.long_conv import convolve, convolve_backward, fast_fft_size, two_sided


def double_loop(u, causal, reverse, skip):
    """z_j = sum_{l<=j} causal[j-l] u_l + sum_{l>=j} reverse[l-j] u_l + D u_j."""
    length = u.shape[1]
    rows = []
    for j in range(length):
        row = skip * u[:, j]
        for k in range(j + 1):
            row = row + causal[:, j - k] * u[:, k]
        for k in range(j, length):
            row = row + reverse[:, k - j] * u[:, k]
        rows.append(row)
    return torch.stack(rows, dim=-1)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 31, 97])
def test_convolution_and_gradients_are_the_double_loops(length):
    torch.manual_seed(length)
    u = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    directions = torch.randn(2, 3, length, dtype=torch.float64, requires_grad=True)
    skip = torch.randn(3, dtype=torch.float64, requires_grad=True)
    expected = double_loop(u, *directions, skip)
    kernel = two_sided(directions.detach(), skip.detach()).requires_grad_()
    ours = convolve(u.detach(), kernel.detach())
    assert error(ours, expected) < 1e-13

    grad = torch.randn(2, length, 3, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, (u, directions, skip), grad.transpose(1, 2))
    grad_u, grad_kernel = convolve_backward(u.detach(), grad, kernel.detach())
    assert error(grad_u.transpose(1, 2), wanted[0]) < 1e-13
    rebuilt = two_sided(directions, skip)  # autograd's own transpose of the assembly
    assert all(
        error(a, b) < 1e-12
        for a, b in zip(
            torch.autograd.grad(rebuilt, (directions, skip), grad_kernel), wanted[1:], strict=True
        )
    )


def test_a_slice_of_channels_is_convolved_alone():
    u = torch.randn(2, 50, 6, dtype=torch.float64)
    kernel = torch.randn(6, fast_fft_size(99), dtype=torch.float64)
    assert error(convolve(u[..., 2:5], kernel[2:5]), convolve(u, kernel)[:, 2:5]) < 1e-14


def test_fast_sizes_are_the_smallest_products_of_2_3_5():
    smooth = sorted(2**a * 3**b * 5**c for a in range(13) for b in range(8) for c in range(6))
    for minimum in range(1, 4000):
        assert fast_fft_size(minimum) == next(size for size in smooth if size >= minimum)
