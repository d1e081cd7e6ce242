"""Plain implementations of the model's parts, to compare its speed and check its results.

Shapes: B batch, L positions, H channels, N modes; A heads, K channels per head, T target positions.
Each takes a layer of the model and uses its parameters, so that its gradients land in them.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pipeline.model.attention import Attention
from pipeline.model.ssm import KERNEL_PARAMETERS, BidirectionalSSM


def materialised(layer: BidirectionalSSM, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The layer (B, L, H) -> (B, L, H) with exp(z l) as an (H, N, L) array, by plain autograd."""
    return _gated(layer, x, _two_sided(_keys(layer, x, mask), *_kernel_parameters(layer)))


def row_by_row(layer: BidirectionalSSM, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The same, one channel at a time, so that only one (N, L) row exists.

    Backward recomputes each row; autograd would keep all of them.
    """
    rows = zip(
        _keys(layer, x, mask).split(1, dim=-1),
        *(
            parameter.split(1, dim=1 if name == "C" else 0)
            for name, parameter in zip(KERNEL_PARAMETERS, _kernel_parameters(layer), strict=True)
        ),
        strict=True,
    )
    z = [checkpoint(_two_sided, *row, use_reentrant=False) for row in rows]
    return _gated(layer, x, torch.cat(z, dim=-1))


def direct_kernels(layer: BidirectionalSSM, length: int, chunk: int = 4096) -> Tensor:
    """Causal and reverse kernels (2, H, L): the sum over modes at each lag, in float64."""
    dynamics = [parameter.detach().double() for parameter in _kernel_parameters(layer)[:-1]]
    weights, z = _modes(*dynamics)
    lags = torch.arange(length, device=z.device, dtype=torch.float64)
    return torch.cat([_kernel(weights, z, part) for part in lags.split(chunk)], dim=-1)


def attention(layer: Attention, x: Tensor, states: Tensor, mask: Tensor | None) -> Tensor:
    """Cross-attention of x (B, T, H) to states (B, L, H) under a mask (B, L) of 1 and 0."""

    def heads(projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (layer.heads, -1)).transpose(1, 2)

    scores = heads(layer.q(x)) @ heads(layer.k(states)).transpose(2, 3)  # (B, A, T, L)
    if mask is not None:
        scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
    context = scores.softmax(-1) @ heads(layer.v(states))
    return layer.o(context.transpose(1, 2).flatten(2))


def _kernel_parameters(layer: BidirectionalSSM) -> list[Tensor]:
    parameters = [getattr(layer, name) for name in KERNEL_PARAMETERS]
    _, _, _, _, C, D = parameters
    if C.shape[0] != 2 or parameters[0].dim() != 2 or layer.k_proj.out_features != len(D):
        raise ValueError(
            "the references implement the published layer only (two directions with shared "
            "eigenvalues, real projections); leave the ssm_ settings at their defaults"
        )
    return parameters


def _keys(layer: BidirectionalSSM, x: Tensor, mask: Tensor | None) -> Tensor:
    k = layer.k_proj(x).transpose(1, 2)
    return k if mask is None else k * mask[..., None].to(k.dtype)


def _gated(layer: BidirectionalSSM, x: Tensor, z: Tensor) -> Tensor:
    return layer.output(layer.q_proj(x) * z.to(x.dtype).transpose(1, 2))


def _modes(
    inv_A_real: Tensor, A_imag: Tensor, log_dt: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """Weights (2, H, N) and log-multipliers (H, N) of the kernel."""
    eigenvalues = torch.complex(-inv_A_real.exp(), A_imag)
    z = eigenvalues * log_dt.exp()[:, None]
    held = torch.view_as_complex(B) * (z.exp() - 1) / eigenvalues  # zero-order hold
    return held * torch.view_as_complex(C), z


def _kernel(weights: Tensor, z: Tensor, lags: Tensor) -> Tensor:
    """2 Re sum_n weights exp(z l), (2, H, L)."""
    return 2 * torch.einsum("dhn,hnl->dhl", weights, torch.exp(z[..., None] * lags)).real


def _two_sided(u: Tensor, *parameters: Tensor) -> Tensor:
    """sum_l causal[j - l] u_l + sum_l reverse[l - j] u_l + D u_j, (B, L, H), in the parameters'
    type."""
    *dynamics, skip = parameters
    length = u.shape[1]
    with torch.autocast(u.device.type, enabled=False):
        u = u.to(skip.dtype)
        lags = torch.arange(length, device=u.device, dtype=u.dtype)
        causal, reverse = torch.fft.rfft(_kernel(*_modes(*dynamics), lags), 2 * length)
        spectrum = torch.fft.rfft(u.transpose(1, 2), 2 * length) * (causal + reverse.conj())
        z = torch.fft.irfft(spectrum, 2 * length)[..., :length]
        return z.transpose(1, 2) + skip * u
