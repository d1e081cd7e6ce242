"""The state-space layer against direct sums, a recurrence, and itself under another cutting."""

import cmath
import itertools
import math
from pathlib import Path

import pytest
import torch
import yaml
from locost_golden import error
from torch import nn

from pipeline.model import Locost, LocostConfig, long_conv, ssm
from pipeline.model.layers import GatedFeedForward
from pipeline.model.ssm import KERNEL_PARAMETERS, BidirectionalSSM
from pipeline.model.vandermonde import modes, powers, reach

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = [1, 2, 3, 8, 64, 97, 255, 257]
AS_PRINTED = yaml.safe_load((ROOT / "pipeline/recipes/as_printed.yaml").read_text())["model"]
VARIANTS = [
    {},
    {"ssm_directions": "separate"},
    {"ssm_directions": "causal"},
    {"ssm_initialisation": "paper"},
    {"ssm_discretisation": "none"},
    {"ssm_projections": "complex"},
    AS_PRINTED,
]


def layer(channels=3, state_dim=5, dtype=torch.float64, **variant):
    torch.manual_seed(1)
    config = LocostConfig(d_model=channels, state_dim=state_dim, **variant)
    module = BidirectionalSSM(config).to(dtype)
    for name in ("inv_A_real", "A_imag", "B"):  # nothing stays where it starts
        parameter = getattr(module, name)
        parameter.data += 0.1 * torch.randn_like(parameter)
    return module


def direct_modes(module):
    """Weights c (D, H, N) and z (D, H, N) by the formulas, in Python's numbers, one at a time."""
    a, im, b = (getattr(module, name).detach() for name in ("inv_A_real", "A_imag", "B"))
    directions, channels, state_dim = module.C.shape[:3]
    c = torch.empty(directions, channels, state_dim, dtype=torch.complex128)
    z = torch.empty_like(c)
    for d, h, n in itertools.product(range(directions), range(channels), range(state_dim)):
        at = (d, h, n) if a.dim() == 3 else (h, n)
        eigenvalue = complex(-math.exp(a[at]), im[at].item())
        z[d, h, n] = eigenvalue * math.exp(module.log_dt[h].item())
        held = (cmath.exp(z[d, h, n].item()) - 1) / eigenvalue if module.hold else 1
        c[d, h, n] = 2 * complex(*b[at].tolist()) * held * complex(*module.C[d, h, n].tolist())
    return c, z


def direct_kernel(module, length):
    """The kernel as a sum over an array of all exponentials."""
    c, z = direct_modes(module)
    powers = torch.exp(z[..., None] * torch.arange(length))
    return torch.einsum("dhn,dhnl->dhl", c, powers).real


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_kernel_is_the_direct_sum(length, variant):
    module = layer(**variant)
    assert error(module.kernels(length), direct_kernel(module, length)) < 1e-13


@torch.no_grad()
def kernel_error(channels, length):
    """Largest error of the float32 kernel at the paper's size, by the float64 direct sum."""
    torch.manual_seed(0)
    module = BidirectionalSSM(LocostConfig(d_model=channels))
    kernel = module.kernels(length)
    c, z = modes(*module.kernel_parameters()[:5])
    largest, difference = 0.0, 0.0
    piece = min(length, 8192)  # later pieces: the first one's exponentials, advanced to their start
    exponentials = torch.exp(z[0, ..., None] * torch.arange(piece))
    for lags in torch.arange(length).split(piece):
        started = c * torch.exp(z[0] * lags[0])
        direct = torch.einsum("dhn,hnl->dhl", started, exponentials[..., : len(lags)]).real
        largest = max(largest, direct.abs().max().item())
        difference = max(difference, (kernel[..., lags] - direct).abs().max().item())
    return difference / largest


def test_kernel_at_the_papers_size_in_float32():
    assert kernel_error(channels=24, length=4096) < 1e-5


@pytest.mark.slow
def test_kernel_of_600_000_lags_in_float32():
    assert kernel_error(channels=2, length=600_000) < 2e-5


def convolved(module, x):
    """The layer's convolution of (B, L, H), whose own takes channels first, perhaps in place."""
    channels = x.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return module.convolution(channels).transpose(1, 2)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_convolution_is_the_recurrence(length, variant):
    """s_j = exp(z) s_(j-1) + u_j, y_j = Re sum c s_j, in both directions, plus D u."""
    module = layer(**variant)
    c, z = direct_modes(module)
    parts = torch.randn(module.parts, 2, length, 3, dtype=torch.float64)
    ours = convolved(module, torch.cat(parts.unbind(), dim=-1)).chunk(module.parts, dim=-1)
    for u, part in zip(parts, ours, strict=True):
        expected = module.D.detach() * u
        for direction, positions in enumerate((range(length), reversed(range(length)))[: len(c)]):
            state = torch.zeros(2, *z.shape[1:], dtype=torch.complex128)
            for j in positions:
                state = torch.exp(z[direction]) * state + u[:, j, :, None]
                expected[:, j] += (c[direction] * state).sum(-1).real
        assert error(part, expected) < 1e-12


def test_complex_gate_is_the_real_part_of_the_product():
    module = layer(ssm_projections="complex")
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    q, k = (
        torch.complex(*projection(x).chunk(2, dim=1))
        for projection in (module.q_proj, module.k_proj)
    )
    real = layer()
    for name in KERNEL_PARAMETERS:
        setattr(real, name, getattr(module, name))
    z = torch.complex(*(real.convolution(part.contiguous()) for part in (k.real, k.imag)))
    assert error(module(x), module.output((q * z).real)) < 1e-13


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("length", [1, 5])
def test_gradients_of_every_parameter(length, variant):
    module = layer(2, 3, **variant)
    x = torch.randn(2, length, 2, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in module.named_parameters()]

    def output(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, (x, *module.parameters()))


@pytest.mark.parametrize("length", [1, 97, 2000, 2001])
@pytest.mark.parametrize("variant", [{}, {"ssm_directions": "separate"}], ids=str)
@torch.no_grad()
def test_truncated_kernels_and_overlap_save_are_the_whole_convolution(length, variant, monkeypatch):
    monkeypatch.setattr(long_conv, "SHORTEST_FFT", 64)
    module = layer(6, 8, torch.float32, **variant)
    module.log_dt[:4] = torch.tensor([0.02, 0.3, 1.0, 3.0]).log()  # some end soon, some late
    u = torch.randn(2, 6, length)
    parameters = module.kernel_parameters()
    lags = ssm.needed_lags(u, parameters, module.hold)
    assert length < 2000 or lags[0] > 1000 > 60 > lags[3]
    monkeypatch.setattr(ssm, "BLOCK_ELEMENTS", {"cpu": 2**30})
    for block in (slice(3, 4), slice(1, 4), slice(None)):  # overlap-save, and in one piece
        z = ssm.state_space_convolution(
            u[:, block], [x[:, block] for x in parameters], module.hold, lags=lags[block]
        )
        assert error(z, module.double().convolution(u.double())[:, block]) < 5e-7
        module.float()


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8])
def test_reach_bounds_the_truncation_error(tolerance):
    module = layer(5, 16, ssm_directions="separate")
    module.log_dt.data[-1] = -12  # this one does not decay in time
    c, z = modes(*module.kernel_parameters()[:5])
    lags = reach(c, z, 4000, tolerance)
    kernel = module.kernels(4000)
    scale = c.detach().abs().square().sum(-1).sqrt()
    beyond = torch.arange(4000) >= lags[:, None]
    left_out = (kernel.abs() * beyond).sum(-1)
    assert (left_out <= tolerance * scale).all()
    assert lags.max() == 4000
    assert lags.min() < 2000  # it does leave out


def test_powers_are_zero_or_normal():
    z = torch.complex(-torch.rand(3, 8).double() * 2, torch.rand(3, 8).double())
    for dtype, real in ((torch.complex64, torch.float32), (torch.complex128, torch.float64)):
        table = powers(z, 5000, dtype)
        modulus = table.to(torch.complex128).abs()
        assert ((modulus == 0) | (modulus > 1e3 * torch.finfo(real).tiny)).all()
        assert (table[:, -1] == 0).any()


def test_blocks_of_channels_change_nothing(monkeypatch):
    def run():
        module = layer(7, 4)
        torch.manual_seed(2)
        u = torch.randn(2, 33, 7, dtype=torch.float64, requires_grad=True)
        module(u).square().sum().backward()
        return [u.grad, *(parameter.grad for parameter in module.parameters())]

    whole = run()
    monkeypatch.setattr(ssm, "BLOCK_ELEMENTS", {"cpu": 400})
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
    u = torch.randn(2, 4, 50).bfloat16()
    wide = module.convolution(u.float())
    narrow = module.convolution(u)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, wide.bfloat16())


def test_backward_inside_autocast_is_exact():
    module = layer(4, 8, torch.float32)

    def gradients():
        for parameter in module.parameters():
            parameter.grad = None
        module.convolution(torch.ones(1, 4, 40)).square().sum().backward()
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


def test_the_papers_initialisation():
    torch.manual_seed(0)
    module = BidirectionalSSM(LocostConfig(d_model=400, state_dim=32, **AS_PRINTED))
    steps = module.log_dt.exp()
    assert 0 < steps.min() < 0.02 < 0.98 < steps.max() <= 1
    assert steps.mean().item() == pytest.approx(0.5, abs=0.05)
    for name in ("B", "C"):
        assert getattr(module, name).var().item() == pytest.approx(0.5, rel=0.05)
    assert module.B.shape == module.C.shape == (2, 400, 32, 2)
    assert module.A_imag.shape == module.inv_A_real.shape == (2, 400, 32)


def test_parameters_as_printed():
    """Lambda and B for each direction, complex q and k: more than the paper's own 234M."""
    with torch.device("meta"):
        count = sum(x.numel() for x in Locost(LocostConfig(**AS_PRINTED)).parameters())
    assert count == 234_724_224 + 12 * 768 * 256 * (1 + 1 + 2) + 12 * 2 * (768 + 1) * 768
    assert count == 258_335_616
