"""Statistics of the state-space layers' convolution kernels (the paper's figures 3, 6 and 7).

Shapes: D directions (forward, from the tokens before; backward, from those after), H channels, N
modes, L lags. k[l] = Re sum_n c_n exp(z_n l), see `pipeline.model.vandermonde.modes`: a mode of a
token's matrix A is exp(z_n), and c_n is its share of c^T b, both conjugates included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.model.ssm import BidirectionalSSM
from pipeline.model.vandermonde import Vandermonde, modes, reach

DIRECTIONS = ("forward", "backward")
SHARE = 0.99
"""Share of |kernel|'s sum within the effective length, by default."""
LONGEST = 1 << 20
"""Maximum lags over which a kernel is summed."""
TRUNCATION = 1e-5
"""Bound on the lags not summed, as a share of the kernel's scale, see `reach`."""
BLOCK_ELEMENTS = 1 << 23
"""Kernel values computed together."""


@dataclass(frozen=True)
class LayerKernels:
    """One layer's kernels and their statistics, on the CPU."""

    values: Tensor
    """The kernels (D, H, L), float32, without the skip."""
    radii: Tensor
    """Spectral radius of A a token (D, H): max_n |exp(z_n)|."""
    weights: Tensor
    """sum_n |c_n| (D, H), the bound at lag 0."""
    lengths: Tensor
    """Effective lengths (D, H) in lags, which hold `share` of the sum of |kernel|; LONGEST where a
    kernel does not decay within LONGEST lags."""
    share: float
    time_scales: Tensor
    """Tokens after which a mode has decayed to 1/e, flat."""

    def is_finite(self) -> bool:
        """Whether all values are finite, so that they can be drawn."""
        return all(x.isfinite().all() for x in (self.values, self.radii, self.weights))

    def bound(self, dimension: int) -> Tensor:
        """rho(A)^lag |c|^T |b|, (D, L), an upper bound on |kernel|: the paper's bound on
        |dy_j / du_l|, with the moduli inside the sum (outside it, the bound does not hold)."""
        lags = torch.arange(self.values.shape[-1], dtype=torch.float64)
        return self.weights[:, dimension, None] * self.radii[:, dimension, None] ** lags


@torch.no_grad()
def examine(layer: BidirectionalSSM, lags: int, share: float = SHARE) -> LayerKernels:
    """A layer's kernels over `lags` lags, their bound, and the lags that hold `share` of them."""
    c, z = modes(*layer.kernel_parameters()[:-1], hold=layer.hold)
    return LayerKernels(
        layer.kernels(lags).float().cpu(),
        spectral_radii(z).expand(len(c), -1).cpu(),
        c.abs().sum(-1).cpu(),
        effective_lengths(c, z, share).cpu(),
        share,
        time_scales(z).cpu(),
    )


def time_scales(z: Tensor) -> Tensor:
    """Tokens after which each mode has decayed to 1/e: 1 / |Re z|, flat, of z (E, H, N)."""
    return 1 / z.real.abs().flatten()


def spectral_radii(z: Tensor) -> Tensor:
    """rho(A) of a token's step, (E, H), of log-multipliers z (E, H, N)."""
    return z.real.amax(-1).exp()


@torch.no_grad()
def effective_lengths(c: Tensor, z: Tensor, share: float) -> Tensor:
    """Fewest lags (D, H), the first included, that hold `share` of the sum of |kernel| over all.

    From c (D, H, N) and z (E, H, N). The sums stop where a bound on the rest is TRUNCATION of
    the kernel's scale, at LONGEST at most. Channels of similar reach are computed together.
    """
    needed = reach(c, z, LONGEST, TRUNCATION)
    order = needed.argsort()
    lengths = torch.empty(c.shape[:2], dtype=torch.int64, device=c.device)
    while len(order):
        lags = int(needed[order[-1]])
        count = max(1, BLOCK_ELEMENTS // (len(c) * lags))
        block, order = order[-count:], order[:-count]
        kernel = Vandermonde(c[:, block], z[:, block], lags, torch.float32).kernel()
        sums = kernel.abs().cumsum(-1, dtype=torch.float64)
        lengths[:, block] = (sums < share * sums[..., -1:]).sum(-1) + 1
    return lengths.where(needed < LONGEST, LONGEST)


def octaves(lags: int) -> list[int]:
    """Bounds of bins of lags, each bin twice as wide as the one before: 0, 1, 2, 4, ... `lags`."""
    return [0, *(1 << k for k in range((lags - 1).bit_length())), lags]


def binned(values: Tensor, bounds: Sequence[int]) -> Tensor:
    """Mean of |values| (..., L) in bins of lags (..., bins), each from one bound to the next."""
    sums = torch.nn.functional.pad(values.double().abs().cumsum(-1), (1, 0))
    at = torch.tensor(bounds)
    return (sums[..., at[1:]] - sums[..., at[:-1]]) / (at[1:] - at[:-1])


def decay(layer: LayerKernels) -> Tensor:
    """Mean |kernel| over all channels in octaves of lags, (D, bins)."""
    return binned(layer.values, octaves(layer.values.shape[-1])).mean(1)


def in_numbers(layer: LayerKernels, dimensions: Sequence[int]) -> dict[str, Any]:
    """A layer's statistics for JSON, by direction, rounded to six digits."""
    return {
        name: {
            "spectral_radius": rounded(layer.radii[d]),
            "bound_at_lag_0": rounded(layer.weights[d]),
            "effective_length": layer.lengths[d].tolist(),
            "decay": rounded(decay(layer)[d]),
            "kernel": {str(h): rounded(layer.values[d, h]) for h in dimensions},
        }
        for d, name in enumerate(DIRECTIONS[: len(layer.values)])
    }


def rounded(values: Tensor) -> list[float]:
    """The values, rounded to six digits."""
    return [float(f"{value:.6g}") for value in values.tolist()]
