"""The kernel build in Triton, in its interpreter, against direct sums and against torch's build."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import triton_interpreter as interpreted

from pipeline.model import kernel_build, ssm
from pipeline.model.kernel_build import TorchBuild, TritonBuild, triton_obstacle
from pipeline.model.long_conv import Layout

VARIANTS = [
    {"ssm_directions": directions, "ssm_discretisation": discretisation}
    for directions in ("shared", "separate", "causal")
    for discretisation in ("zero_order_hold", "none")
]
PUBLISHED = {"published_convolution": True}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def process():
    """Triton's interpreter in a process of its own."""
    pytest.importorskip("triton", reason="needs requirements-dev.txt, on Linux")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=interpreted.interpret) as pool:
        yield pool


def within(errors, kernel=3e-7, gradients=1e-5):
    bounds = {name: kernel if name == "kernel" else gradients for name in errors}
    assert all(errors[name] < bounds[name] for name in errors), errors
    return True


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(variant.values()))
@pytest.mark.parametrize(("state_dim", "length"), [(5, 1), (20, 97)])
def test_every_variant_is_the_direct_sum(process, variant, state_dim, length):
    sizes = (2, state_dim, length)
    assert within(process.submit(interpreted.build_errors, *sizes, **variant).result())


@pytest.mark.parametrize("length", [1, 6, 4097])
def test_the_published_layout(process, length):
    assert within(process.submit(interpreted.build_errors, 3, 4, length, **PUBLISHED).result())


def test_fewer_lags_than_positions(process):
    assert within(process.submit(interpreted.build_errors, 2, 4, 20000, 130).result())


def test_several_tiles_of_lags(process):
    assert within(process.submit(interpreted.build_errors, 2, 4, 4500).result())


@pytest.mark.slow
def test_the_base_models_size(process):
    assert within(process.submit(interpreted.build_errors, 3, 256, 4096).result())


@pytest.mark.slow
def test_the_longest_positions(process):
    assert within(process.submit(interpreted.build_errors, 2, 32, 1 << 16).result())


@pytest.mark.slow
def test_products_of_tensor_cores_are_exact_enough():
    """The interpreter multiplies in float32: here operands lose the bits that tf32 lacks."""
    pytest.importorskip("triton", reason="needs requirements-dev.txt, on Linux")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=interpreted.interpret) as pool:
        errors = pool.submit(interpreted.build_errors, 3, 256, 4096, tensor_cores=True).result()
    assert within(errors)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*VARIANTS[::2], PUBLISHED], ids=str)
def test_a_layer_is_that_of_torchs_build(process, variant):
    errors = process.submit(interpreted.layer_errors, 2, 41, **variant).result()
    assert len(errors) == 13
    assert within(errors)


@pytest.mark.parametrize("settings", [{"block": 100}, {"bf16": True}], ids=str)
@pytest.mark.parametrize(("batch", "length"), [(2, 30), (20, 8)], ids=["rebuilt", "kept"])
def test_in_blocks_of_channels_and_under_autocast(process, batch, length, settings):
    """Where backward builds the kernels again, and where it finds their spectra."""
    errors = process.submit(interpreted.layer_errors, batch, length, **settings).result()
    assert within(errors, gradients=1e-2 if "bf16" in settings else 1e-5)


def test_operators_pass_torchs_checks(process):
    assert len(process.submit(interpreted.check_operators).result()) == 3


@pytest.mark.parametrize(
    ("samples", "length", "input_bytes", "kept"),
    [(16, 4096, 2, True), (15, 4096, 2, False), (8, 4096, 4, True), (8, 450, 2, False)],
)
def test_spectra_are_kept_at_a_quarter_of_the_input(samples, length, input_bytes, kept):
    size = Layout.of(length).size
    assert ssm.keeps_spectra(samples, length, size, input_bytes, 4) == kept


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("variant", [{}, PUBLISHED, {"ssm_projections": "complex"}], ids=str)
def test_kept_spectra_change_no_gradient(variant, kept, monkeypatch):
    """Kept, backward builds no kernel; the gradients are the same bit for bit."""
    built = []
    kernel = TorchBuild.kernel
    monkeypatch.setattr(TorchBuild, "kernel", lambda self: built.append(1) or kernel(self))

    def gradients(share):
        monkeypatch.setattr(ssm, "SPECTRUM_SHARE", share)
        built.clear()
        module = interpreted.layer(4, 3, **variant)
        torch.manual_seed(1)
        module(torch.randn(2, 21, 4)).square().sum().backward()
        return [parameter.grad for parameter in module.parameters()], len(built)

    ours, builds = gradients(0 if kept else 1e9)
    assert builds == (1 if kept else 2)
    assert all(map(torch.equal, ours, gradients(1e9)[0]))


def test_another_type_is_refused():
    module = interpreted.layer(2, 3).double()
    module.kernel_build = "triton"
    with pytest.raises(ValueError, match=r"'triton' computes in float32.*not torch\.float64; set"):
        module(torch.randn(1, 4, 2, dtype=torch.float64))
    parameters = [x.bfloat16() for x in interpreted.layer(2, 3).kernel_parameters()]
    with pytest.raises(ValueError, match=r"not torch\.bfloat16; set it to 'torch'"):
        TritonBuild(parameters, True, Layout.of(4), torch.float32)


def test_why_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(kernel_build, "find_spec", lambda name: name)
    assert "not torch.bfloat16" in triton_obstacle(CPU, torch.bfloat16)
    assert "NVIDIA GPU, not a device of type cpu" in triton_obstacle(CPU, torch.float32)
    for capability, expected in (((7, 0), "capability 8.0, not 7.0"), ((9, 0), "None")):
        # no GPU is here to ask
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert expected in str(triton_obstacle(torch.device("cuda"), torch.float32))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_obstacle(CPU, torch.float32) is None
    monkeypatch.setattr(kernel_build, "find_spec", lambda name: None)
    assert triton_obstacle(CPU, torch.float32) == "triton is not installed"
