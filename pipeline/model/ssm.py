"""The bidirectional diagonal state-space layer of the encoder.

Shapes: B batch, L positions, H channels, N complex modes, P * Q >= L the two levels of lags.
Each channel convolves its input with k[l] = 2 Re sum_n c_n exp(z_n l) in both directions
(LOCOST, section 3); lambda, B, step and skip are shared by the directions, C is not.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .config import LocostConfig
from .layers import at_least_fp32
from .long_conv import convolve, convolve_backward, two_sided, two_sided_transposed

KERNEL_PARAMETERS = ("inv_A_real", "A_imag", "log_dt", "B", "C", "D")
# Elements of the largest work array of one block of channels: it should stay in cache.
BLOCK_ELEMENTS = 1 << 21


def modes(
    inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """Weights c (2, H, N) and log-multipliers z (H, N) of the kernel, in complex128.

    lambda = -exp(inv_A_real) + i A_imag, z = lambda exp(log_dt), and by zero-order hold
    c = 2 B C (exp(z) - 1) / lambda, so that k[l] = Re sum_n c_n exp(z_n l). float64, since the
    phases reach 80 rad a step.
    """
    eigenvalues = torch.complex(-inv_A_real.double().exp(), A_imag.double())
    z = eigenvalues * log_dt.double().exp()[:, None]
    held = torch.view_as_complex(B.double()) * (torch.exp(z) - 1) / eigenvalues
    return 2 * held * torch.view_as_complex(C.double()), z


class Vandermonde:
    """k[d, h, l] = Re sum_n c[d, h, n] exp(z[h, n] l) for l < length, as a two-level product.

    With l = qP + r, exp(z l) = exp(z P q) exp(z r): one batched real matrix product of a
    (2Q x 2N) and a (2N x P) factor per channel, instead of an (N x L) array of exponentials.
    """

    def __init__(self, c: Tensor, z: Tensor, length: int, dtype: torch.dtype) -> None:
        self.length = length
        self.inner, self.outer = levels(length)
        # Re(a b) is the dot product of conj(a) and b as real pairs: the left factor is conjugate.
        c, left_z = c.conj().resolve_conj(), (z * self.inner).conj().resolve_conj()
        self.c = c.to(dtype.to_complex()).transpose(0, 1)[:, :, None]  # (H, 2, 1, N)
        self.outer_powers = powers(left_z, self.outer, self.c.dtype)[:, None]  # (H, 1, Q, N)
        self.left = real_pairs(self.c * self.outer_powers).flatten(1, 2)  # (H, 2Q, 2N)
        self.right = real_pairs(powers(z, self.inner, self.c.dtype))  # (H, P, 2N)

    def kernel(self) -> Tensor:
        """(2, H, L): causal, then reverse."""
        table = self.left @ self.right.transpose(1, 2)  # (H, 2Q, P)
        return table.view(len(table), 2, -1)[..., : self.length].transpose(0, 1)

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of c (2, H, N) and z (H, N), in complex128, from the kernel's (2, H, L)."""
        channels = grad.shape[1]
        table = grad.new_zeros(channels, 2, self.outer * self.inner)
        table[..., : self.length] = grad.transpose(0, 1)
        table = table.view(channels, 2 * self.outer, self.inner)
        left = complex_pairs(table @ self.right).unflatten(1, (2, -1))  # (H, 2, Q, N)
        right = complex_pairs(table.transpose(1, 2) @ self.left)  # (H, P, N)
        left.mul_(self.outer_powers.conj())
        right.mul_(complex_pairs(self.right).conj())
        lags = torch.arange(self.inner * self.outer, device=grad.device, dtype=grad.dtype)
        grad_c = left.sum(2).conj().transpose(0, 1)
        by_outer = weighted_sum_(lags[:: self.inner], left)  # (H, 2, N)
        by_inner = weighted_sum_(lags[: self.inner], right)  # (H, N)
        grad_z = (self.c[:, :, 0] * by_outer.conj()).sum(1) + by_inner
        return grad_c.to(torch.complex128), grad_z.to(torch.complex128)


def levels(length: int) -> tuple[int, int]:
    """P, the lags of the inner level, a power of two near sqrt(2 length), and Q of the outer."""
    inner = 1 << round(math.log2(2 * length) / 2)
    return inner, -(-length // inner)


def powers(z: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """exp(z p) for p < count, (H, N) -> (H, count, N), by doubling.

    Each multiplier is squared in float64, so an entry passes at most log2(count) roundings of the
    working type.
    """
    table = torch.empty(z.shape[0], count, z.shape[1], dtype=dtype, device=z.device)
    table[:, 0] = 1
    multiplier = torch.exp(z)[:, None]
    done = 1
    while done < count:
        more = min(done, count - done)
        torch.mul(table[:, :more], multiplier.to(dtype), out=table[:, done : done + more])
        multiplier = multiplier * multiplier
        done += more
    return table


def complex_pairs(x: Tensor) -> Tensor:
    """Real pairs (..., 2N) as complex (..., N)."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def real_pairs(x: Tensor) -> Tensor:
    """Complex (..., N) as real pairs (..., 2N)."""
    return torch.view_as_real(x).flatten(-2)


def weighted_sum_(weights: Tensor, x: Tensor) -> Tensor:
    """sum_p weights_p x[..., p, :] of complex x, which is overwritten."""
    return complex_pairs(real_pairs(x).mul_(weights[:, None]).sum(-2))


class _StateSpaceConvolution(torch.autograd.Function):
    """The layer's two-sided convolution; keeps only its inputs and recomputes in backward."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(u, *parameters)
        z = torch.empty_like(u)
        with torch.autocast(u.device.type, enabled=False):
            for block, (*dynamics, skip) in channel_blocks(u, parameters):
                kernel = two_sided(Vandermonde(*modes(*dynamics), *_size(u, skip)).kernel(), skip)
                z[..., block] = convolve(u[..., block], kernel).transpose(1, 2)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        u, *parameters = ctx.saved_tensors
        grad_u = torch.empty_like(u)
        grads = [torch.empty_like(parameter) for parameter in parameters]
        with torch.autocast(u.device.type, enabled=False):
            for block, values in channel_blocks(u, parameters):
                leaves = [value.detach().requires_grad_() for value in values[:-1]]
                with torch.enable_grad():
                    c, z = modes(*leaves)
                vandermonde = Vandermonde(c.detach(), z.detach(), *_size(u, values[-1]))
                kernel = two_sided(vandermonde.kernel(), values[-1])
                grad_block, grad_kernel = convolve_backward(u[..., block], grad[..., block], kernel)
                grad_u[..., block] = grad_block.transpose(1, 2)
                directions, grad_skip = two_sided_transposed(grad_kernel, u.shape[1])
                grad_modes = vandermonde.backward(directions)
                block_grads = torch.autograd.grad((c, z), leaves, grad_modes)
                for total, part in zip(grads, (*block_grads, grad_skip), strict=True):
                    _channels(total, block).copy_(part)
        return grad_u, *grads


def channel_blocks(u: Tensor, parameters: Sequence[Tensor]) -> Iterator[tuple[slice, list[Tensor]]]:
    """Slices of channels, with the parameters' part of each, small enough for the cache."""
    batch, length, channels = u.shape
    inner, outer = levels(length)
    width = max(2 * batch * length, 2 * (inner + 2 * outer) * parameters[0].shape[1])
    size = max(1, BLOCK_ELEMENTS // width)
    for start in range(0, channels, size):
        block = slice(start, start + size)
        yield block, [_channels(parameter, block) for parameter in parameters]


def _channels(parameter: Tensor, block: slice) -> Tensor:
    """A kernel parameter's channels; only C, of four dimensions, has its directions first."""
    return parameter[:, block] if parameter.dim() == 4 else parameter[block]


def _size(u: Tensor, parameter: Tensor) -> tuple[int, torch.dtype]:
    """Length and working type of the kernel."""
    return u.shape[1], at_least_fp32(torch.promote_types(u.dtype, parameter.dtype))


class BidirectionalSSM(nn.Module):
    """W_o (q * ssm(k)) + b_o, with q and k affine in the input and ssm the two-sided convolution.

    The mask comes after the projection of k, since that has a bias: padding then neither adds to
    real positions nor changes their values.
    """

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        channels, modes_ = config.d_model, config.state_dim
        self.inv_A_real = nn.Parameter(torch.full((channels, modes_), math.log(0.5)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(modes_).repeat(channels, 1))
        self.log_dt = nn.Parameter(torch.empty(channels).uniform_(math.log(1e-3), math.log(0.1)))
        self.B = nn.Parameter(torch.tensor([1.0, 0.0]).repeat(channels, modes_, 1))
        self.C = nn.Parameter(torch.randn(2, channels, modes_, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(channels))
        self.q_proj = nn.Linear(channels, channels)
        self.k_proj = nn.Linear(channels, channels)
        self.output = nn.Linear(channels, channels)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, L, H), mask (B, L) of 1 (real) and 0 or None -> (B, L, H)."""
        k = self.k_proj(x)
        if mask is not None:
            k = k * mask[..., None].to(k.dtype)
        return self.output(self.q_proj(x) * self.convolution(k))

    def convolution(self, k: Tensor) -> Tensor:
        """The state-space models alone: (B, L, H) -> (B, L, H)."""
        parameters = (getattr(self, name) for name in KERNEL_PARAMETERS)
        return _StateSpaceConvolution.apply(k, *parameters)

    @torch.no_grad()
    def kernels(self, length: int) -> Tensor:
        """Causal and reverse kernel (2, H, length), without the skip, to look at."""
        c, z = modes(self.inv_A_real, self.A_imag, self.log_dt, self.B, self.C)
        return Vandermonde(c, z, length, at_least_fp32(self.D.dtype)).kernel()
