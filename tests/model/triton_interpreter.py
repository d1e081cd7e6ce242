"""Comparisons of the Triton kernel build with direct sums, run in Triton's interpreter.

For a process of its own: Triton reads TRITON_INTERPRET when it is imported. Each function returns
largest errors by name, relative to the largest reference value.
"""

import os

import numpy as np
import torch

from pipeline.model import LocostConfig, ssm
from pipeline.model.kernel_build import TritonBuild
from pipeline.model.long_conv import Layout
from pipeline.model.ssm import KERNEL_PARAMETERS, BidirectionalSSM

TF32 = 0xFFFFE000
"""The bits of float32 that tensor cores read."""


def interpret() -> None:
    """Called first in the process."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def layer(channels: int, state_dim: int, **variant) -> BidirectionalSSM:
    """In float32; no parameter stays where it starts."""
    torch.manual_seed(0)
    config = LocostConfig(d_model=channels, state_dim=state_dim, **variant)
    module = BidirectionalSSM(config)
    for name in ("inv_A_real", "A_imag", "B"):
        parameter = getattr(module, name)
        parameter.data += 0.1 * torch.randn_like(parameter)
    return module


def error(ours, truth) -> float:
    """Of arrays; absolute where the truth is 0."""
    ours, truth = (np.asarray(x.detach() if torch.is_tensor(x) else x) for x in (ours, truth))
    return float(np.abs(ours - truth).max() / (np.abs(truth).max() or 1))


def direct_kernel(parameters, hold, layout):
    """numpy's sum over all exponentials, angles in extended precision: (H, F) in float64."""
    a, im, log_dt, b, c, d = (x.detach().numpy().astype(np.longdouble) for x in parameters)
    dt = np.exp(log_dt)[..., None]
    b, c = (x[..., 0] + 1j * x[..., 1] for x in (b, c))
    eigenvalues = -np.exp(a) + 1j * im
    weights = 2 * b * c * ((np.exp(eigenvalues * dt) - 1) / eigenvalues if hold else 1)
    kernel = np.zeros((c.shape[1], layout.size))
    for direction, weight in enumerate(weights):
        at = (eigenvalues * dt)[direction % len(eigenvalues)]
        for lag in range(layout.lags):
            index = (layout.reverse_end - lag) % layout.size if direction and lag else lag
            kernel[:, index] += (weight * np.exp(at * lag)).sum(-1).real.astype(np.float64)
    kernel[:, 0] += d[0].astype(np.float64)
    return kernel


def direct_gradients(parameters, hold, layout, grad):
    """float64 autograd of the same sum, from the kernel's gradient (H, F)."""
    leaves = [x.detach().double().requires_grad_() for x in parameters]
    a, im, log_dt, b, c, d = leaves
    eigenvalues = torch.complex(-a.exp(), im)
    z = eigenvalues * log_dt.exp()[..., None]
    weights = 2 * torch.view_as_complex(b) * torch.view_as_complex(c)
    if hold:
        weights = weights * (torch.exp(z) - 1) / eigenvalues
    grad, lags = grad.double(), torch.arange(layout.lags)
    total = (grad[:, 0] * d[0]).sum()
    for direction, weight in enumerate(weights):
        exponentials = torch.exp(z[direction % len(z)][..., None] * lags)
        index = torch.where(lags == 0, 0, layout.reverse_end - lags) if direction else lags
        kernel = torch.einsum("hn,hnl->hl", weight, exponentials).real
        total = total + (kernel * grad[:, index]).sum()
    return torch.autograd.grad(total, leaves)


def build_errors(channels, state_dim, length, lags=None, tensor_cores=False, **variant):
    """Of the kernel, and of the gradients for one of random numbers."""
    products = multiply_as_tensor_cores() if tensor_cores else [None]
    module = layer(channels, state_dim, **variant)
    layout = Layout.of(length, lags, module.published)
    parameters = [x.detach() for x in module.kernel_parameters()]
    build = TritonBuild(parameters, module.hold, layout, torch.float32)
    kernel, grad = build.kernel(), torch.randn(channels, layout.size)
    truth = direct_gradients(parameters, module.hold, layout, grad)
    ours = dict(zip(KERNEL_PARAMETERS, build.gradients(grad), strict=True))
    errors = {name: error(x, y) for (name, x), y in zip(ours.items(), truth, strict=True)}
    assert products
    return {"kernel": error(kernel, direct_kernel(parameters, module.hold, layout)), **errors}


def multiply_as_tensor_cores() -> list[tuple[int, ...]]:
    """Matrix products of what tf32 keeps of the operands, summed in float32; gets their shapes."""
    from triton.runtime import interpreter

    shapes = []

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        a, b = ((x.data.copy().view(np.uint32) & np.uint32(TF32)).view(np.float32) for x in (a, b))
        shapes.append((*a.shape, b.shape[1]))
        return interpreter.TensorHandle(a @ b + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot
    return shapes


def layer_errors(batch, length, block=None, bf16=False, **variant):
    """Of the layer's output and of all gradients with Triton's build, against torch's."""
    x = torch.randn(batch, length, 5, generator=torch.Generator().manual_seed(1))
    if block is not None:
        ssm.BLOCK_ELEMENTS = {"cpu": block}
    found = []
    for build in ("torch", "triton"):
        module = layer(5, 3, **variant)
        module.kernel_build = build
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = module(x)
        output.float().square().sum().backward()
        found.append({"output": output.float()} | {k: p.grad for k, p in module.named_parameters()})
    expected, ours = found
    return {name: error(ours[name], expected[name]) for name in expected}


def check_operators() -> list[str]:
    """torch's own checks of the operators: schema, and shapes on tensors without data."""
    from pipeline.model import triton_operators as operators

    tests = ("test_schema", "test_faketensor")
    parameters = [x.detach() for x in layer(2, 3, ssm_directions="separate").kernel_parameters()]
    grad, sums = torch.randn(2, 10), torch.randn(2, 2, 3, 4)
    checked = []
    for operator, arguments in (
        (operators.kernel_build, (*parameters, True, 5, 10, 10)),
        (operators.kernel_build_sums, (grad, *parameters[:3], 2, 5, 10)),
        (operators.kernel_build_backward, (sums, grad, *parameters[:5], True)),
    ):
        torch.library.opcheck(operator, arguments, test_utils=tests)
        checked.append(operator._name)
    return checked
