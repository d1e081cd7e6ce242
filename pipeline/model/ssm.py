"""The bidirectional diagonal state-space layer of the encoder.

Shapes: B batch, L positions, H channels, N complex modes, D directions (causal, then reverse), E
sets of eigenvalues (1 shared by the directions, or one each), P * Q >= L the two levels of lags.
Each channel convolves its input with k[l] = Re sum_n c_n exp(z_n l) in each direction (LOCOST,
section 3); step and skip are shared by the directions, C is not.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .config import LocostConfig
from .layers import at_least_fp32
from .long_conv import Layout, convolve, convolve_backward, two_sided, two_sided_transposed

KERNEL_PARAMETERS = ("inv_A_real", "A_imag", "log_dt", "B", "C", "D")
# Elements of the largest work array of one block of channels: on a CPU it should stay in cache.
BLOCK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 27}
# Powers that a weight times this may still make subnormal are dropped, see `powers`.
NEGLIGIBLE = 1e2
# Without gradients, kernels of longer inputs end where the bound of `reach` is met.
TRUNCATED_FROM = 1 << 14


def modes(
    inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, B: Tensor, C: Tensor, *, hold: bool = True
) -> tuple[Tensor, Tensor]:
    """Weights c (D, H, N) and log-multipliers z (E, H, N) of the kernel, in complex128.

    From inv_A_real and A_imag (E, H, N), log_dt (1, H), B (E, H, N, 2), C (D, H, N, 2):
    lambda = -exp(inv_A_real) + i A_imag, z = lambda exp(log_dt), and with a zero-order hold
    c = 2 B C (exp(z) - 1) / lambda, without 2 B C, so that k[l] = Re sum_n c_n exp(z_n l).
    float64, since the phases reach 80 rad a step.
    """
    eigenvalues = torch.complex(-inv_A_real.double().exp(), A_imag.double())
    z = eigenvalues * log_dt.double().exp()[..., None]
    weights = torch.view_as_complex(B.double())
    if hold:
        weights = weights * (torch.exp(z) - 1) / eigenvalues
    return 2 * weights * torch.view_as_complex(C.double()), z


def reach(c: Tensor, z: Tensor, length: int, tolerance: float) -> Tensor:
    """Lags (H,) that a kernel of c (D, H, N) and z (E, H, N) needs, from 1 to `length`.

    What lies beyond T lags is bounded by sum_l |k[l]| <= sum_n |c_n| exp(Re z_n T) /
    (1 - exp(Re z_n)), the geometric series of every mode's modulus. By Young's inequality leaving
    it out changes the convolution by at most that much of the input, in the largest value and in
    the mean square alike. T is the least at which it is under `tolerance` of the kernel's own
    scale, sqrt(sum_n |c_n|^2), in every direction.
    """
    decay = z.real.clamp(max=-1e-12)  # a mode that does not decay keeps all lags
    weights = c.abs() / -torch.expm1(decay)
    allowed = tolerance * c.abs().square().sum(-1).sqrt()  # (D, H)
    low = torch.ones_like(allowed)
    high = torch.full_like(allowed, length)
    while (low < high).any():
        middle = ((low + high) / 2).floor()
        beyond = (weights * (decay * middle[..., None]).exp()).sum(-1)
        low = torch.where(beyond > allowed, middle + 1, low)
        high = torch.where(beyond > allowed, high, middle)
    return high.amax(0).long()


class Vandermonde:
    """k[d, h, l] = Re sum_n c[d, h, n] exp(z[h, n] l) for l < length, as a two-level product.

    With l = qP + r, exp(z l) = exp(z P q) exp(z r): one batched real matrix product of a
    (Q x 2N) factor of each direction and a (2N x P) one for all that share eigenvalues, instead
    of an (N x L) array of exponentials. G = E * H such sets, R = D / E directions in each.
    """

    def __init__(self, c: Tensor, z: Tensor, length: int, dtype: torch.dtype) -> None:
        self.length = length
        self.inner, self.outer = levels(length)
        self.sets, self.channels = z.shape[:2]
        z = z.flatten(0, 1)
        # Re(a b) is the dot product of conj(a) and b as real pairs: the left factor is conjugate.
        c, left_z = c.conj().resolve_conj(), (z * self.inner).conj().resolve_conj()
        # Contiguous, so that its product with the powers is: (G, R, 1, N).
        self.c = self._by_set(c.to(dtype.to_complex())).contiguous()[:, :, None]
        self.outer_powers = powers(left_z, self.outer, self.c.dtype)[:, None]  # (G, 1, Q, N)
        self.left = real_pairs(self.c * self.outer_powers).flatten(1, 2)  # (G, RQ, 2N)
        self.right = real_pairs(powers(z, self.inner, self.c.dtype))  # (G, P, 2N)

    def kernel(self) -> Tensor:
        """(D, H, L): causal, then reverse."""
        table = self.left @ self.right.transpose(1, 2)  # (G, RQ, P)
        table = table.unflatten(1, (-1, self.outer)).flatten(2)[..., : self.length]
        return self._by_direction(table)

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of c (D, H, N) and z (E, H, N), in complex128, from the kernel's (D, H, L)."""
        grad = self._by_set(grad)
        table = grad.new_zeros(*grad.shape[:2], self.outer * self.inner)
        table[..., : self.length] = grad
        table = table.view(len(grad), -1, self.inner)  # (G, RQ, P)
        left = complex_pairs(table @ self.right).unflatten(1, (-1, self.outer))  # (G, R, Q, N)
        right = complex_pairs(table.transpose(1, 2) @ self.left)  # (G, P, N)
        left.mul_(self.outer_powers.conj())
        right.mul_(complex_pairs(self.right).conj())
        lags = torch.arange(self.inner * self.outer, device=grad.device, dtype=grad.dtype)
        grad_c, by_outer = sums(left, lags[:: self.inner])  # (G, R, N)
        _, by_inner = sums(right, lags[: self.inner])  # (G, N)
        grad_c = self._by_direction(grad_c.conj())
        grad_z = (self.c[:, :, 0] * by_outer.conj()).sum(1) + by_inner
        grad_z = grad_z.unflatten(0, (self.sets, -1))
        return grad_c.to(torch.complex128), grad_z.to(torch.complex128)

    def _by_set(self, x: Tensor) -> Tensor:
        """(D, H, ...) -> (G, R, ...)."""
        return x.unflatten(0, (self.sets, -1)).transpose(1, 2).flatten(0, 1)

    def _by_direction(self, x: Tensor) -> Tensor:
        """(G, R, ...) -> (D, H, ...)."""
        return x.unflatten(0, (self.sets, -1)).transpose(1, 2).flatten(0, 1)


def levels(length: int) -> tuple[int, int]:
    """P, the lags of the inner level, a power of two near sqrt(2 length), and Q of the outer."""
    inner = 1 << round(math.log2(2 * length) / 2)
    return inner, -(-length // inner)


def powers(z: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """exp(z p) for p < count, (G, N) -> (G, count, N), by doubling.

    Each multiplier is squared in float64, so an entry passes at most log2(count) roundings of the
    working type. Multipliers under the root of its smallest number become zero: entries are then
    either zero or normal, and no product meets subnormal numbers, which are many times slower.
    """
    negligible = math.log(NEGLIGIBLE * torch.finfo(dtype).tiny ** 0.5)
    doublings = max(1, (count - 1).bit_length())
    multipliers = [torch.exp(z)]
    while len(multipliers) < doublings:
        multipliers.append(multipliers[-1] * multipliers[-1])
    exponents = 2.0 ** torch.arange(doublings, device=z.device, dtype=torch.float64)
    vanished = exponents[:, None, None] * z.real < negligible
    steps = torch.stack(multipliers).masked_fill_(vanished, 0).to(dtype)  # exp(z 2^k)
    table = torch.empty(z.shape[0], count, z.shape[1], dtype=dtype, device=z.device)
    table[:, 0] = 1
    for k in range(doublings if count > 1 else 0):
        done = 1 << k
        more = min(done, count - done)
        torch.mul(table[:, :more], steps[k][:, None], out=table[:, done : done + more])
    return table


def complex_pairs(x: Tensor) -> Tensor:
    """Real pairs (..., 2N) as complex (..., N)."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def real_pairs(x: Tensor) -> Tensor:
    """Complex (..., N) as real pairs (..., 2N)."""
    return torch.view_as_real(x).flatten(-2)


def sums(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """sum_p x[..., p, :] and sum_p weights_p x[..., p, :] of complex x, as one matrix product."""
    both = torch.stack([torch.ones_like(weights), weights])
    plain, weighted = complex_pairs(both @ real_pairs(x)).unbind(-2)
    return plain, weighted


@torch.no_grad()
def state_space_convolution(
    u: Tensor,
    parameters: Sequence[Tensor],
    hold: bool,
    published: bool = False,
    lags: Sequence[int] = (),
) -> Tensor:
    """u (B, L, H) convolved with the kernels of the parameters, a block of channels at a time.

    `lags`, where given, are those that each channel's kernel needs; a block computes its most.
    """
    dtype, length = working_type(u, parameters[-1]), u.shape[1]
    layout = Layout.of(length, max(lags, default=length), published)
    channels = transposed(u)  # (B, H, L), overwritten block by block
    with torch.autocast(u.device.type, enabled=False):
        for block, (*dynamics, skip) in channel_blocks(u, parameters, layout):
            layout = Layout.of(length, max(lags[block], default=length), published)
            directions = Vandermonde(*modes(*dynamics, hold=hold), layout.lags, dtype).kernel()
            kernel = two_sided(directions, skip[0], layout)
            channels[:, block] = convolve(channels[:, block], kernel, layout)
    return transposed(channels)


def needed_lags(
    u: Tensor, parameters: Sequence[Tensor], hold: bool, tolerance: float | None = None
) -> list[int]:
    """The `reach` of each channel's kernel, as many lags as an input of u's length has at most.

    The tolerance is the rounding of the working type unless it is given.
    """
    rounding = torch.finfo(working_type(u, parameters[-1])).eps / 2
    bound = rounding if tolerance is None else tolerance
    return reach(*modes(*parameters[:-1], hold=hold), u.shape[1], bound).tolist()


class _StateSpaceConvolution(torch.autograd.Function):
    """The layer's two-sided convolution; keeps only its inputs and recomputes in backward."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, hold: bool, published: bool, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(u, *parameters)
        ctx.hold, ctx.layout = hold, Layout.of(u.shape[1], published=published)
        return state_space_convolution(u, parameters, hold, published)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, *parameters = ctx.saved_tensors
        layout, dtype = ctx.layout, working_type(u, parameters[-1])
        channels, grad_channels = transposed(u), transposed(grad)
        grads = [torch.empty_like(parameter) for parameter in parameters]
        with torch.autocast(u.device.type, enabled=False):
            for block, (*dynamics, skip) in channel_blocks(u, parameters, layout):
                leaves = [value.detach().requires_grad_() for value in dynamics]
                with torch.enable_grad():
                    c, z = modes(*leaves, hold=ctx.hold)
                vandermonde = Vandermonde(c.detach(), z.detach(), layout.lags, dtype)
                kernel = two_sided(vandermonde.kernel(), skip[0], layout)
                grad_channels[:, block], grad_kernel = convolve_backward(
                    channels[:, block], grad_channels[:, block], kernel
                )
                directions, grad_skip = two_sided_transposed(grad_kernel, len(c), layout)
                grad_modes = vandermonde.backward(directions)
                block_grads = torch.autograd.grad((c, z), leaves, grad_modes)
                for total, part in zip(grads, (*block_grads, grad_skip[None]), strict=True):
                    total[:, block] = part
        return transposed(grad_channels), None, None, *grads


def transposed(x: Tensor) -> Tensor:
    """A contiguous (B, N, M) from (B, M, N), row by row: torch is fast with matrices only."""
    result = x.new_empty(x.shape[0], x.shape[2], x.shape[1])
    for row, values in zip(result, x.contiguous(), strict=True):
        row.copy_(values.t())
    return result


def channel_blocks(
    u: Tensor, parameters: Sequence[Tensor], layout: Layout
) -> Iterator[tuple[slice, list[Tensor]]]:
    """Slices of channels, with the parameters' part of each, that fit BLOCK_ELEMENTS."""
    inner, outer = levels(layout.lags)
    state_dim = parameters[0].shape[-1]
    width = max(u.shape[0] * layout.size, 2 * (inner + 2 * outer) * state_dim)
    allowed = BLOCK_ELEMENTS.get(u.device.type, max(BLOCK_ELEMENTS.values()))
    size = max(1, allowed // width)
    for start in range(0, u.shape[-1], size):
        block = slice(start, start + size)
        yield block, [parameter[:, block] for parameter in parameters]


def working_type(u: Tensor, parameter: Tensor) -> torch.dtype:
    """Type of kernel and FFT: that of input and parameters, at least float32."""
    return at_least_fp32(torch.promote_types(u.dtype, parameter.dtype))


class BidirectionalSSM(nn.Module):
    """W_o (q * ssm(k)) + b_o, with q and k affine in the input and ssm the two-sided convolution.

    The mask comes after the projection of k, since that has a bias: padding then neither adds to
    real positions nor changes their values. Complex q and k (the paper's) are convolved by the
    same real kernel; the real part of their product goes on to W_o.
    """

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        channels, modes_ = config.d_model, config.state_dim
        directions = 1 if config.ssm_directions == "causal" else 2
        sets = (2,) if config.ssm_directions == "separate" else ()
        as_in_paper = config.ssm_initialisation == "paper"
        self.hold = config.ssm_discretisation == "zero_order_hold"
        self.published = config.published_convolution
        self.parts = 2 if config.ssm_projections == "complex" else 1
        self.inv_A_real = nn.Parameter(torch.full((*sets, channels, modes_), math.log(0.5)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(modes_).repeat(*sets, channels, 1))
        if as_in_paper:
            self.log_dt = nn.Parameter(torch.log(1 - torch.rand(channels)))
            self.B = nn.Parameter(torch.randn(*sets, channels, modes_, 2) * 0.5**0.5)
        else:
            first, last = math.log(config.ssm_dt_min), math.log(config.ssm_dt_max)
            self.log_dt = nn.Parameter(torch.empty(channels).uniform_(first, last))
            self.B = nn.Parameter(torch.tensor([1.0, 0.0]).repeat(*sets, channels, modes_, 1))
        self.C = nn.Parameter(torch.randn(directions, channels, modes_, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(channels))
        self.q_proj = nn.Linear(channels, self.parts * channels)
        self.k_proj = nn.Linear(channels, self.parts * channels)
        self.output = nn.Linear(channels, channels)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, L, H), mask (B, L) of 1 (real) and 0 or None -> (B, L, H)."""
        return self.gate(x, self.convolution(self.keys(x, mask)))

    def keys(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What is convolved: (B, L, H) -> (B, L, H), or (B, L, 2H) of real and imaginary parts."""
        k = self.k_proj(x)
        return k if mask is None else k * mask[..., None].to(k.dtype)

    def gate(self, x: Tensor, z: Tensor) -> Tensor:
        """The layer's output (B, L, H) from its input and the convolved keys, token by token."""
        gated = self.q_proj(x) * z
        if self.parts == 2:
            real, imaginary = gated.chunk(2, dim=-1)
            gated = real - imaginary
        return self.output(gated)

    def convolution(self, k: Tensor) -> Tensor:
        """The state-space models alone: (B, L, H) -> (B, L, H), or (B, L, 2H) by parts."""
        parameters = self.kernel_parameters()
        k_parts = torch.cat(k.chunk(self.parts, dim=-1)) if self.parts > 1 else k
        length = k.shape[1]
        if self.published and length % 2:  # the published code makes lengths even
            k_parts = torch.nn.functional.pad(k_parts, (0, 0, 0, 1))
        if torch.is_grad_enabled() or length < TRUNCATED_FROM or self.published:
            z = _StateSpaceConvolution.apply(k_parts, self.hold, self.published, *parameters)
        else:
            lags = needed_lags(k_parts, parameters, self.hold)
            z = state_space_convolution(k_parts, parameters, self.hold, lags=lags)
        z = z[:, :length]
        return torch.cat(z.chunk(self.parts), dim=-1) if self.parts > 1 else z

    def kernel_parameters(self) -> list[Tensor]:
        """The kernel's parameters, channels second: (E, H, N) twice, (1, H), (E, H, N, 2),
        (D, H, N, 2), (1, H)."""
        dimensions = {"inv_A_real": 3, "A_imag": 3, "log_dt": 2, "B": 4, "C": 4, "D": 2}
        values = {name: getattr(self, name) for name in KERNEL_PARAMETERS}
        return [x if x.dim() == dimensions[name] else x[None] for name, x in values.items()]

    @torch.no_grad()
    def kernels(self, length: int) -> Tensor:
        """The kernel of each direction (D, H, length), without the skip, to look at."""
        *dynamics, skip = self.kernel_parameters()
        return Vandermonde(
            *modes(*dynamics, hold=self.hold), length, at_least_fp32(skip.dtype)
        ).kernel()
