"""The build of a layer's kernel and its backward pass in Triton, as torch operators.

Of the layer's parameters as `BidirectionalSSM.kernel_parameters` has them (H channels, N modes, D
directions, E sets of eigenvalues), in float32. Triton is imported when an operator first runs:
shapes and launches are known without it.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

Shape = tuple[int, ...]


@torch.library.custom_op("locost::kernel_build", mutates_args=())
def kernel_build(
    inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, B: Tensor, C: Tensor, D: Tensor,
    hold: bool, lags: int, size: int, reverse_end: int,
) -> Tensor:  # fmt: skip
    """The two-sided kernel (H, F), as `long_conv.two_sided` lays it out; one launch."""
    from . import triton_kernels as kernels

    parameters = [x.contiguous() for x in (inv_A_real, A_imag, log_dt, B, C, D)]
    sets, channels, modes = inv_A_real.shape
    kernel = D.new_empty(channels, size)
    rows = kernels.rows_for(lags)
    tiles = -(-lags // (rows * kernels.COLUMNS.value))
    with torch.cuda.device_of(kernel):
        kernels.build[channels, tiles](
            kernel, *parameters, channels, modes, lags, size, reverse_end, SETS=sets,
            DIRECTIONS=len(C), HOLD=hold, ROWS=rows, num_warps=kernels.WARPS, num_stages=1,
        )  # fmt: skip
    return kernel


@kernel_build.register_fake
def _(
    inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, B: Tensor, C: Tensor, D: Tensor,
    hold: bool, lags: int, size: int, reverse_end: int,
) -> Tensor:  # fmt: skip
    return D.new_empty(inv_A_real.shape[1], size)


@register_flop_formula(torch.ops.locost.kernel_build)
def _(
    inv_A_real: Shape, A_imag: Shape, log_dt: Shape, B: Shape, C: Shape, D: Shape,
    hold: bool, lags: int, *_: Any, **__: Any,
) -> int:  # fmt: skip
    """Two real products of each direction, mode and lag."""
    return 2 * 2 * math.prod(C[:3]) * lags


@torch.library.custom_op("locost::kernel_build_sums", mutates_args=())
def kernel_build_sums(
    grad: Tensor, inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, directions: int, lags: int,
    reverse_end: int,
) -> Tensor:  # fmt: skip
    """sum_l g_l exp(z l) and sum_l g_l l exp(z l), (D, H, N, 4), of the kernel's gradient (H, F),
    where g_l (lags,) is its part of one direction; one launch."""
    from . import triton_kernels as kernels

    grad = grad.contiguous()
    parameters = [x.contiguous() for x in (inv_A_real, A_imag, log_dt)]
    sets, channels, modes = inv_A_real.shape
    sums = grad.new_empty(directions, channels, modes, 4)
    blocks = -(-modes // kernels.MODES.value)
    with torch.cuda.device_of(grad):
        kernels.correlate[channels, blocks, sets](
            sums, grad, *parameters, channels, modes, lags, grad.shape[1], reverse_end,
            DIRECTIONS=directions // sets, ROWS=kernels.rows_for(lags), num_warps=kernels.WARPS,
            num_stages=1,
        )  # fmt: skip
    return sums


@kernel_build_sums.register_fake
def _(
    grad: Tensor, inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, directions: int, lags: int,
    reverse_end: int,
) -> Tensor:  # fmt: skip
    return grad.new_empty(directions, *inv_A_real.shape[1:], 4)


@register_flop_formula(torch.ops.locost.kernel_build_sums)
def _(
    grad: Shape, inv_A_real: Shape, A_imag: Shape, log_dt: Shape, directions: int, lags: int,
    *_: Any, **__: Any,
) -> int:  # fmt: skip
    """Four real products of each direction, mode and lag."""
    return 4 * 2 * directions * math.prod(inv_A_real[1:]) * lags


@torch.library.custom_op("locost::kernel_build_backward", mutates_args=())
def kernel_build_backward(
    sums: Tensor, grad: Tensor, inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, B: Tensor,
    C: Tensor, hold: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `kernel_build`'s parameters, from `kernel_build_sums` and the kernel's gradient
    (H, F); one launch."""
    from . import triton_kernels as kernels

    grad = grad.contiguous()
    parameters = [x.contiguous() for x in (inv_A_real, A_imag, log_dt, B, C)]
    grads = _like(*parameters)
    sets, channels, modes = inv_A_real.shape
    with torch.cuda.device_of(grad):
        kernels.differentiate[channels,](
            sums, grad, *parameters, *grads, channels, modes, grad.shape[1], SETS=sets,
            DIRECTIONS=len(C), HOLD=hold, num_warps=kernels.WARPS,
        )  # fmt: skip
    return grads


@kernel_build_backward.register_fake
def _(
    sums: Tensor, grad: Tensor, inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, B: Tensor,
    C: Tensor, hold: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _like(inv_A_real, A_imag, log_dt, B, C)


def _like(
    inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A new tensor for each parameter's gradient; D's shape is that of log_dt."""
    made = [x.new_empty(x.shape) for x in (inv_A_real, A_imag, log_dt, B, C, log_dt)]
    return made[0], made[1], made[2], made[3], made[4], made[5]
