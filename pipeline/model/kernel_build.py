"""A layer's two-sided convolution kernel and its gradients, from its parameters.

Two ways to compute the same: `TorchBuild`, in torch's operators, on any device and in any type; and
`TritonBuild`, in a few launches, on an NVIDIA GPU in float32 (triton_kernels.py). Parameters are
those of `BidirectionalSSM.kernel_parameters`, of any slice of the H channels.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

from .long_conv import Layout, two_sided, two_sided_transposed
from .vandermonde import Vandermonde, modes

KernelBuild = Literal["torch", "triton"]
LEAST_CAPABILITY = (8, 0)
"""Of a GPU that has tf32."""


class TorchBuild:
    """By products of two small matrices (vandermonde.py), and torch's autograd for the rest."""

    def __init__(
        self, parameters: Sequence[Tensor], hold: bool, layout: Layout, dtype: torch.dtype,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        """`differentiable`: `gradients` will be called."""
        self.differentiable = differentiable
        self.dynamics = [x.detach().requires_grad_(differentiable) for x in parameters[:-1]]
        self.skip = parameters[-1]
        self.hold, self.layout, self.dtype = hold, layout, dtype

    @cached_property
    def modes(self) -> tuple[Tensor, Tensor]:
        """c (D, H, N) and z (E, H, N)."""
        with torch.set_grad_enabled(self.differentiable):
            return modes(*self.dynamics, hold=self.hold)

    @cached_property
    def factors(self) -> Vandermonde:
        """Those of the kernel."""
        c, z = self.modes
        return Vandermonde(c.detach(), z.detach(), self.layout.lags, self.dtype)

    def kernel(self) -> Tensor:
        """(H, F)."""
        return two_sided(self.factors.kernel(), self.skip[0], self.layout)

    def gradients(self, grad: Tensor) -> list[Tensor]:
        """Of each parameter, from the kernel's (H, F)."""
        directions, grad_skip = two_sided_transposed(grad, len(self.modes[0]), self.layout)
        grad_modes = self.factors.backward(directions)
        to_skip = grad_skip[None].to(self.skip.dtype).contiguous()  # no view of all the kernel's
        return [*torch.autograd.grad(self.modes, self.dynamics, grad_modes), to_skip]


class TritonBuild:
    """One launch for the kernel, two for the gradients."""

    def __init__(
        self, parameters: Sequence[Tensor], hold: bool, layout: Layout, dtype: torch.dtype,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        """Raises ValueError for another type than float32."""
        if others := {dtype, *(x.dtype for x in parameters)} - {torch.float32}:
            raise ValueError(
                "kernel_build 'triton' computes in float32, from parameters of that type, not "
                f"{', '.join(sorted(map(str, others)))}; set it to 'torch'"
            )
        self.parameters, self.hold, self.layout = parameters, hold, layout

    def kernel(self) -> Tensor:
        """(H, F)."""
        lags, size, reverse_end = self.layout.lags, self.layout.size, self.layout.reverse_end
        kernel: Tensor = _operators().kernel_build(
            *self.parameters, self.hold, lags, size, reverse_end
        )
        return kernel

    def gradients(self, grad: Tensor) -> list[Tensor]:
        """Of each parameter, from the kernel's (H, F)."""
        *dynamics, _ = self.parameters
        operators, layout = _operators(), self.layout
        sums = operators.kernel_build_sums(
            grad, *dynamics[:3], len(dynamics[-1]), layout.lags, layout.reverse_end
        )
        return list(operators.kernel_build_backward(sums, grad, *dynamics, self.hold))


BUILDS: dict[KernelBuild, type[TorchBuild] | type[TritonBuild]] = {
    "torch": TorchBuild,
    "triton": TritonBuild,
}


def _operators() -> ModuleType:
    """triton_operators.py. No import statement: folders exported for transformers lack it."""
    return import_module(".triton_operators", __package__)


def triton_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why 'triton' cannot run on a device in a working type; None if it can.

    In Triton's interpreter (TRITON_INTERPRET=1, for tests) it runs on a CPU.
    """
    if dtype != torch.float32:
        return f"it computes in float32, not {dtype}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device.type != "cuda":
        return f"it needs an NVIDIA GPU, not a device of type {device.type}"
    if (capability := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY:
        return f"it needs a GPU of compute capability 8.0, not {'.'.join(map(str, capability))}"
    return None
