"""Kernels of diagonal state-space models from their modes, as products of two small matrices.

Shapes: H channels, N complex modes, D directions (causal, then reverse), E sets of eigenvalues (1
shared by the directions, or one each), P * Q >= L the two levels of lags. A channel's kernel is
k[l] = Re sum_n c_n exp(z_n l) in each direction (LOCOST, section 3).
"""

import math

import torch
from torch import Tensor

# Powers that a weight times this may still make subnormal are dropped, see `powers`.
NEGLIGIBLE = 1e2


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

    The kernel beyond T lags is bounded by sum_l |k[l]| <= sum_n |c_n| exp(Re z_n T) /
    (1 - exp(Re z_n)), the geometric series of every mode's modulus. By Young's inequality
    truncation changes the convolution by at most that much of the input, in the maximum and in the
    mean square. T is the smallest at which the bound is under `tolerance` of the kernel's scale,
    sqrt(sum_n |c_n|^2), in every direction.
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

    def __init__(
        self, c: Tensor, z: Tensor, length: int, dtype: torch.dtype, inner: int | None = None
    ) -> None:
        """`inner`: P, a power of two; None: that of `levels`."""
        self.length = length
        self.inner, self.outer = levels(length) if inner is None else (inner, -(-length // inner))
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
        return self._by_direction(self._table(self.left)[..., : self.length])

    def lags(self, begin: int, end: int) -> Tensor:
        """(D, H, end - begin), those lags of the kernel; both are multiples of P."""
        rows = slice(begin // self.inner, end // self.inner)
        left = self.left.unflatten(1, (-1, self.outer))[:, :, rows].flatten(1, 2)
        return self._by_direction(self._table(left))

    def _table(self, left: Tensor) -> Tensor:
        """(G, R, lags) from rows of the left factor (G, R rows, 2N)."""
        table = left @ self.right.transpose(1, 2)  # (G, R rows, P)
        return table.unflatten(1, (self.c.shape[1], -1)).flatten(2)

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
