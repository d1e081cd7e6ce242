"""Parts of encoder and decoder blocks: gradient checkpointing, norm, feed-forward, precision."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .config import LocostConfig


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """float32 for narrower types, the type itself for float32 and float64."""
    return torch.promote_types(dtype, torch.float32)


def product_type(x: Tensor) -> torch.dtype:
    """The type of x in matrix products: autocast's, if that is on and x is not float64."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
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


def joins_products(x: Tensor, layer: nn.Linear) -> bool:
    """Whether the products of x with several weights like the layer's become one.

    Only where the backward pass needs rounded copies of the weights anyway: otherwise joining them
    would be one more copy, which takes memory, and in a decoding step longer than the products.
    """
    return torch.is_grad_enabled() and product_type(x) != layer.weight.dtype


def joint_products(x: Tensor, *layers: nn.Linear) -> Tensor:
    """The results of linear layers without bias for one input (..., in), side by side, by one
    product: (..., sum of out)."""
    return functional.linear(x, torch.cat([layer.weight for layer in layers]))


def round_once(x: Tensor) -> Tensor:
    """A copy of x in the type of matrix products, for `RoundedOnce`; x itself if it has that."""
    return x.detach().to(product_type(x))


class RoundedOnce(torch.autograd.Function):
    """A tensor's one copy in the type of matrix products, for each of its readers.

    The readers' gradients, in that type, add up in the tensor's own type, as if each had rounded
    it for itself.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


def gated_gelu(joint: Tensor) -> Tensor:
    """gelu(a) * b of a and b side by side: (..., 2F) -> (..., F)."""
    if torch.compiler.is_compiling():  # the compiler fuses what follows
        a, b = joint.chunk(2, dim=-1)
        return functional.gelu(a, approximate="tanh") * b
    return _GatedGelu.apply(joint)


class _GatedGelu(torch.autograd.Function):
    """`gated_gelu` whose gradients are written side by side: no copy joins them."""

    @staticmethod
    def forward(ctx: Any, joint: Tensor) -> Tensor:
        ctx.save_for_backward(joint)
        a, b = joint.chunk(2, dim=-1)
        return functional.gelu(a, approximate="tanh").mul_(b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (joint,) = ctx.saved_tensors
        a, b = joint.chunk(2, dim=-1)
        grads = torch.empty_like(joint)
        grad_a, grad_b = grads.chunk(2, dim=-1)
        torch.mul(grad, functional.gelu(a, approximate="tanh"), out=grad_b)
        torch.ops.aten.gelu_backward.grad_input(grad * b, a, approximate="tanh", grad_input=grad_a)
        return grads


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
        if joins_products(x, self.wi_0):
            gated = gated_gelu(joint_products(x, self.wi_0, self.wi_1))
        else:
            gated = functional.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x)
        return self.wo(self.dropout(gated))
