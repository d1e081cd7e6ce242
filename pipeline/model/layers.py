"""Parts of encoder and decoder blocks: gradient checkpointing, norm, feed-forward, precision."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .config import LocostConfig


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """float32 for narrower types, the type itself for float32 and float64."""
    return torch.promote_types(dtype, torch.float32)


def product_type(x: Tensor) -> torch.dtype:
    """The type of x in matrix products: autocast's, if that is on and x is not float64."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


class Block(nn.Module):
    """One residual block, the unit of gradient checkpointing and of compilation."""

    recompute = False
    """Gradient (activation) checkpointing: keep only the inputs for the backward pass and
    recompute the rest."""

    def __call__(self, *inputs: Any) -> Any:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(super().__call__, *inputs, use_reentrant=False)
        return super().__call__(*inputs)


class RMSNorm(nn.Module):
    """w * x / sqrt(mean x^2 + epsilon), in at least float32, also under autocast.

    `for_products`: only matrix products read the result, so it is rounded to their type once
    instead of by each of them.
    """

    def __init__(self, config: LocostConfig, for_products: bool = False) -> None:
        super().__init__()
        self.epsilon, self.for_products = config.layer_norm_epsilon, for_products
        self.weight = nn.Parameter(torch.ones(config.d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H), in x's type or that of matrix products."""
        wide = x.to(at_least_fp32(x.dtype))
        weight = self.weight.to(wide.dtype)
        normed = functional.rms_norm(wide, weight.shape, weight, self.epsilon)
        return normed.to(product_type(x) if self.for_products else x.dtype)


class IntoChannels(nn.Linear):
    """A linear layer with the channels of its result first, as a convolution reads them.

    One batched product that writes its result transposed: a copy less than transposing afterwards.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, in) -> (B, out, L), contiguous."""
        weight, bias = (value.to(product_type(x)) for value in (self.weight, self.bias))
        x = x.to(weight.dtype).transpose(1, 2)
        return torch.baddbmm(bias[:, None], weight.expand(len(x), -1, -1), x)


class FromChannels(nn.Linear):
    """A linear layer that reads the result of a convolution, whose channels come first."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, L) -> (B, L, out), contiguous."""
        weight, bias = (value.to(product_type(x)) for value in (self.weight, self.bias))
        x = x.to(weight.dtype).transpose(1, 2)
        return torch.baddbmm(bias, x, weight.t().expand(len(x), -1, -1))


class GatedFeedForward(nn.Module):
    """wo dropout(gelu(wi_0 x) * wi_1 x), with the tanh form of GELU and no biases."""

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.wi_0 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wi_1 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        for linear in (self.wi_0, self.wi_1, self.wo):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        gate = functional.gelu(self.wi_0(x), approximate="tanh")
        return self.wo(self.dropout(gate * self.wi_1(x)))
