"""What encoder and decoder blocks share: recomputation, norm, feed-forward, safe precision."""

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
    """The type of x in matrix products: autocast's, where that is on and x is not float64."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


class Block(nn.Module):
    """One residual block, the unit of recomputation and of compilation."""

    recompute = False
    """Keep only the inputs for the backward pass and compute the rest once more."""

    def __call__(self, *inputs: Any) -> Any:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(super().__call__, *inputs, use_reentrant=False)
        return super().__call__(*inputs)


class RMSNorm(nn.Module):
    """w * x / sqrt(mean x^2 + epsilon), in at least float32 whatever autocast says.

    `for_products`: only matrix products read the result, so it is rounded to their type once,
    instead of by each of them.
    """

    def __init__(self, config: LocostConfig, for_products: bool = False) -> None:
        super().__init__()
        self.epsilon, self.for_products = config.layer_norm_epsilon, for_products
        self.weight = nn.Parameter(torch.ones(config.d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H), of x's type, or of that of matrix products."""
        wide = x.to(at_least_fp32(x.dtype))
        weight = self.weight.to(wide.dtype)
        normed = functional.rms_norm(wide, weight.shape, weight, self.epsilon)
        return normed.to(product_type(x) if self.for_products else x.dtype)


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
