"""The state-space layer against direct sums, a recurrence, and itself under another cutting."""

import math

import pytest
import torch
from locost_golden import error
from torch import nn

from pipeline.model import LocostConfig, ssm
from pipeline.model.layers import GatedFeedForward
from pipeline.model.ssm import KERNEL_PARAMETERS, BidirectionalSSM, modes

LENGTHS = [1, 2, 3, 8, 64, 97, 255, 257]


def layer(channels=3, state_dim=5, dtype=torch.float64):
    torch.manual_seed(1)
    return BidirectionalSSM(LocostConfig(d_model=channels, state_dim=state_dim)).to(dtype)


def direct_modes(module):
    """The formulas of the kernel, written out once more, channel by channel in Python's floats."""
    module.requires_grad_(False)
    c, z = modes(*(getattr(module, name) for name in KERNEL_PARAMETERS[:5]))
    for h in range(z.shape[0]):
        for n in range(z.shape[1]):
            eigenvalue = complex(-math.exp(module.inv_A_real[h, n]), module.A_imag[h, n].item())
            step = eigenvalue * math.exp(module.log_dt[h])
            held = complex(*module.B[h, n].tolist()) * (torch.exp(z[h, n]).item() - 1) / eigenvalue
            assert z[h, n].item() == pytest.approx(step, rel=1e-14)
            for d in range(2):
                weight = 2 * held * complex(*module.C[d, h, n].tolist())
                assert c[d, h, n].item() == pytest.approx(weight, rel=1e-13)
    return c, z


@pytest.mark.parametrize("length", LENGTHS)
def test_kernel_is_the_direct_sum(length):
    module = layer()
    c, z = direct_modes(module)
    powers = torch.exp(z[..., None] * torch.arange(length))
    direct = torch.einsum("dhn,hnl->dhl", c, powers).real
    assert error(module.kernels(length), direct) < 1e-13


def test_kernel_at_the_papers_size_in_float32():
    module = layer(8, 256, torch.float32)
    c, z = modes(*(getattr(module, name).detach() for name in KERNEL_PARAMETERS[:5]))
    direct = torch.einsum("dhn,hnl->dhl", c, torch.exp(z[..., None] * torch.arange(4096))).real
    assert error(module.kernels(4096), direct) < 2e-6


@pytest.mark.parametrize("length", LENGTHS)
def test_convolution_is_the_recurrence(length):
    """s_j = exp(z) s_(j-1) + u_j, y_j = Re sum c s_j, once from either end, plus D u."""
    module = layer()
    c, z = direct_modes(module)
    u = torch.randn(2, length, 3, dtype=torch.float64)
    expected = module.D.detach() * u
    for direction, positions in enumerate((range(length), reversed(range(length)))):
        state = torch.zeros(2, *z.shape, dtype=torch.complex128)
        for j in positions:
            state = torch.exp(z) * state + u[:, j, :, None]
            expected[:, j] += (c[direction] * state).sum(-1).real
    assert error(module.convolution(u), expected) < 1e-12


@pytest.mark.parametrize("length", [1, 5])
def test_gradients_of_every_parameter(length):
    module = layer(2, 3)
    u = torch.randn(2, length, 2, dtype=torch.float64, requires_grad=True)
    parameters = [getattr(module, name) for name in KERNEL_PARAMETERS]
    assert torch.autograd.gradcheck(ssm._StateSpaceConvolution.apply, (u, *parameters))


def test_blocks_of_channels_change_nothing(monkeypatch):
    def run():
        module = layer(7, 4)
        torch.manual_seed(2)
        u = torch.randn(2, 33, 7, dtype=torch.float64, requires_grad=True)
        module(u).square().sum().backward()
        return [u.grad, *(parameter.grad for parameter in module.parameters())]

    whole = run()
    monkeypatch.setattr(ssm, "BLOCK_ELEMENTS", 400)
    cut = run()
    assert all(error(a, b) < 1e-12 for a, b in zip(cut, whole, strict=True))


def test_padding_changes_nothing():
    module = layer()
    u = torch.randn(1, 23, 3, dtype=torch.float64)
    padded = torch.cat([u, torch.randn(1, 14, 3, dtype=torch.float64)], 1)
    mask = torch.arange(37)[None] < 23
    assert error(module(padded, mask.long())[:, :23], module(u)) < 1e-13


def test_bfloat16_input_is_convolved_in_float32():
    module = layer(4, 8, torch.float32)
    u = torch.randn(2, 50, 4).bfloat16()
    wide = module.convolution(u.float())
    narrow = module.convolution(u)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, wide.bfloat16())


def test_backward_inside_autocast_is_exact():
    module = layer(4, 8, torch.float32)

    def gradients():
        for parameter in module.parameters():
            parameter.grad = None
        module.convolution(torch.ones(1, 40, 4)).square().sum().backward()
        return [getattr(module, name).grad for name in KERNEL_PARAMETERS]

    outside = gradients()
    with torch.autocast("cpu", torch.bfloat16):
        inside = gradients()
    assert all(error(a, b) < 1e-5 for a, b in zip(inside, outside, strict=True))


def test_parameters_are_real_and_start_as_stated():
    torch.manual_seed(0)
    module = BidirectionalSSM(LocostConfig(d_model=400, state_dim=32))
    assert set(dict(module.named_parameters(recurse=False))) == set(KERNEL_PARAMETERS)
    assert not any(tensor.is_complex() for tensor in (*module.parameters(), *module.buffers()))
    assert (module.inv_A_real == math.log(0.5)).all()
    assert torch.allclose(module.A_imag[7], math.pi * torch.arange(32))
    assert (torch.tensor([1.0, 0.0]) == module.B).all()
    assert math.log(1e-3) <= module.log_dt.min() < module.log_dt.max() <= math.log(0.1)
    assert module.log_dt.mean().item() == pytest.approx(math.log(1e-2), abs=0.2)
    assert module.C.var().item() == pytest.approx(0.5, rel=0.05)
    assert module.D.var().item() == pytest.approx(1, rel=0.25)
    linear = nn.Linear(400, 400)
    assert module.q_proj.weight.std().item() == pytest.approx(linear.weight.std().item(), rel=0.02)
    feed_forward = GatedFeedForward(LocostConfig(d_model=400, d_ff=900))
    assert feed_forward.wi_0.weight.var().item() == pytest.approx(1 / 400, rel=0.02)
    assert feed_forward.wo.weight.var().item() == pytest.approx(1 / 900, rel=0.02)
