"""Attention without padding against torch's with it, by stand-ins for the GPU's operators."""

import sys

import pytest
import torch
from locost_golden import error, random_model
from packed_reference import stand_in

from pipeline.model import LocostConfig, attention_choice
from pipeline.model import attention_backends as backends
from pipeline.model.attention import Attention, rotation
from pipeline.model.cross_attention import whole_source
from pipeline.model.packed_self_attention import PackedCausal, whole_targets
from pipeline.model.self_attention import Causal

CPU = torch.device("cpu")
PACKED = ["varlen", "flash"]
IDS = torch.randint(2, 40, (3, 13), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(13) < torch.tensor([[13], [1], [9]])).long()
LABELS = torch.randint(2, 40, (3, 7), generator=torch.Generator().manual_seed(4))


@pytest.fixture(params=PACKED)
def packed(request, monkeypatch):
    """A backend of packed rows and the calls of its stand-in."""
    return request.param, stand_in(monkeypatch, request.param)


@pytest.fixture
def exact(monkeypatch):
    """Stand-ins take float64, so that nothing hides an error."""
    monkeypatch.setattr(backends, "FLASH_TYPES", (torch.float64,))


def attention_of(config):
    """Its projections, in float64."""
    torch.manual_seed(0)
    return Attention(config).double()


def results(attended, attention, x, *others):
    """Attention's output, the gradients of a weighted sum: of the inputs, of the projections."""
    output = attended.attend(attention, x)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).double()
    inputs = (x, *others, *attention.parameters())
    return [output, *torch.autograd.grad(output, inputs, weights)]


def assert_same(ours, plain):
    """Relative to the largest: over one position some gradients are zero but for rounding."""
    scale = max(one.abs().max().item() for one in plain)
    for one, other in zip(ours, plain, strict=True):
        assert (one - other).abs().max() < 1e-12 * scale


@pytest.mark.parametrize("lengths", [[13, 1, 9], [1, 1, 1], [13, 13, 13], None])
@pytest.mark.parametrize("targets", [1, 5])
def test_packed_cross_attention_is_the_padded_one(packed, exact, lengths, targets):
    """Of rows of unequal length, of one token, of equal length; results and all gradients."""
    backend, calls = packed
    config = LocostConfig(d_model=16, num_heads=2, head_dim=8)
    x, states = (
        torch.randn(3, length, 16, dtype=torch.float64, requires_grad=True)
        for length in (targets, 13)
    )
    mask = None if lengths is None else (torch.arange(13) < torch.tensor(lengths)[:, None]).long()
    attention = attention_of(config)
    ours, plain = (
        results(whole_source(states, mask, one), attention, x, states) for one in (backend, "sdpa")
    )
    assert_same(ours, plain)
    assert [call["keys"] for call in calls] == [sum(lengths or [13, 13, 13])]


@pytest.mark.parametrize("length", [1, 2, 7])
def test_packed_self_attention_is_the_padded_one(packed, exact, length):
    """Causal and rotated; results and all gradients."""
    backend, calls = packed
    config = LocostConfig(d_model=16, num_heads=2, head_dim=8, positions="rotary")
    x = torch.randn(3, length, 16, dtype=torch.float64, requires_grad=True)
    angles = rotation(config, length, torch.float64, CPU)
    attention = attention_of(config)
    ours, plain = (
        results(whole_targets(None, angles, one), attention, x) for one in (backend, "sdpa")
    )
    assert_same(ours, plain)
    assert [call["causal"] for call in calls] == [True]


def test_a_bias_is_left_to_torch():
    bias, angles = torch.zeros(2, 5, 5), torch.zeros(5, 4, 2)
    assert isinstance(whole_targets(bias, None, "varlen"), Causal)
    assert isinstance(whole_targets(None, angles, "varlen"), PackedCausal)
    assert isinstance(whole_targets(None, angles, "sdpa"), Causal)


def test_packed_backends_pass_the_test(packed):
    """Through stand-ins, which sum gradients over positions in bf16."""
    backend, calls = packed
    assert attention_choice.self_test(backend, CPU, torch.bfloat16, 64) < 2e-2
    assert [call["causal"] for call in calls] == [False, True]
    assert [call["keys"] for call in calls] == [70 + 1 + 33, 3 * 70]


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_the_kernels_named_are_those_called(packed, exact, positions):
    """Two layers."""
    backend, calls = packed
    model = random_model(positions=positions).double()
    named = {"encoder": "state-space, FFT", "decoder": "sdpa", "cross": "sdpa"}
    assert model.attention_kernels() == named
    model.decoder.attention_backend = backend
    model(IDS, MASK, LABELS)
    named |= {"decoder": backend if positions == "rotary" else "sdpa", "cross": backend}
    assert model.attention_kernels() == named
    assert len(calls) == 2 * list(named.values()).count(backend)


@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("mask", [None, MASK])
def test_a_packed_model_is_the_model_with_sdpa(packed, exact, positions, mask):
    """Loss and gradients."""
    backend, calls = packed
    model = random_model(positions=positions).double()
    model(IDS, mask, LABELS).loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert not calls
    model.zero_grad()
    model.decoder.attention_backend = backend
    model(IDS, mask, LABELS).loss.backward()
    for name, parameter in model.named_parameters():
        assert error(parameter.grad, expected[name]) < 1e-10, name
    # A block's cross-attention, and where no bias is needed its self-attention before it.
    causal = [True, False] if positions == "rotary" else [False]
    assert [call["causal"] for call in calls] == causal * 2
    source = [call["keys"] for call in calls if not call["causal"]]
    assert source == [IDS.numel() if mask is None else int(mask.sum())] * 2


@pytest.mark.parametrize("training", [True, False])
def test_flash_drops_attention_weights_in_training(monkeypatch, training):
    calls = stand_in(monkeypatch, "flash")
    model = random_model(positions="rotary", dropout=0.25).train(training)
    model.decoder.attention_backend = "flash"
    with torch.autocast("cpu", torch.bfloat16):
        model(IDS, MASK, LABELS)
    assert {call["dropout"] for call in calls} == {0.25 if training else 0.0}
    assert {call["type"] for call in calls} == {torch.bfloat16}


def test_varlen_refuses_to_drop_attention_weights(monkeypatch):
    calls = stand_in(monkeypatch, "varlen")
    model = random_model(positions="rotary", dropout=0.25)
    model.decoder.attention_backend = "varlen"
    with torch.autocast("cpu", torch.bfloat16):
        model(IDS, MASK, LABELS)
        with pytest.raises(ValueError, match=r"no dropout, and the model trains with 0\.25"):
            model.train()(IDS, MASK, LABELS)
    assert {call["type"] for call in calls} == {torch.bfloat16}


@pytest.mark.parametrize("causal", [True, False])
def test_the_installed_varlen_attn_takes_our_call(causal):
    """The real operator, on the meta device: shapes and types, forward and backward."""
    queries, keys, values = (
        torch.randn(15, 2, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for _ in range(3)
    )
    bounds = backends.equal_bounds(3, 5, torch.device("meta"))
    context = backends.varlen_attend(queries, keys, values, bounds, bounds, causal)
    assert (context.shape, context.dtype) == (queries.shape, torch.bfloat16)
    gradients = torch.autograd.grad(context.sum(), (queries, keys, values))
    assert [one.shape for one in gradients] == [queries.shape] * 3


def test_the_installed_varlen_attn_needs_no_break_in_a_compiled_graph():
    """Traced whole on the meta device, where the operator runs without a GPU."""
    config = LocostConfig(d_model=16, num_heads=2, head_dim=8, positions="rotary")
    attention = Attention(config).to("meta", torch.bfloat16)
    x = torch.randn(3, 5, 16, dtype=torch.bfloat16, device="meta")
    source = whole_source(x, None, "varlen")
    torch.compiler.reset()
    traced = torch.compile(lambda x: source.attend(attention, x), backend="eager", fullgraph=True)
    assert traced(x).shape == x.shape
    torch.compiler.reset()


@pytest.mark.parametrize("backend", PACKED)
def test_an_unsupported_type_is_an_error(monkeypatch, backend):
    stand_in(monkeypatch, backend)
    model = random_model()
    model.decoder.attention_backend = backend
    with pytest.raises(ValueError, match=f"{backend}.*got torch.float32.*run in bf16 autocast"):
        model(IDS, MASK, LABELS)


@pytest.mark.parametrize(
    ("backend", "module", "remedy"),
    [
        ("flash", "flash_attn", r"requirements-gpu\.txt"),
        ("varlen", "torch.nn.attention.varlen", "choose sdpa"),
    ],
)
def test_a_missing_operator_is_an_error(monkeypatch, backend, module, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    model = random_model()
    model.decoder.attention_backend = backend
    with pytest.raises(ValueError, match=remedy):
        model(IDS, MASK, LABELS)
