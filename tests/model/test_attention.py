"""Attention against a plain softmax in float64, in each backend; rotary positions; compilation."""

import cmath
import sys
from types import ModuleType

import pytest
import torch
from locost_golden import error, random_model
from torch.utils.checkpoint import checkpoint

from pipeline.model import LocostConfig
from pipeline.model import attention_backends as backends
from pipeline.model.attention import attend, rotate, rotation
from pipeline.model.decoder import use_attention

CPU = torch.device("cpu")
DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
IDS = torch.randint(2, 40, (3, 13), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(13) < torch.tensor([[13], [4], [9]])).long()
LABELS = torch.randint(2, 40, (3, 7), generator=torch.Generator().manual_seed(4))


def varlen_by_loops(calls):
    """flash_attn.flash_attn_varlen_func by plain loops over rows and positions.

    A stand-in with its documented arguments, because flash-attn runs on a GPU only: it shows that
    rows are packed, bounded and scaled as documented, not that flash-attn computes them right.
    """

    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ):
        calls.append({"dropout_p": dropout_p, "causal": causal, "keys": len(k), "type": q.dtype})
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        assert starts_q[0] == starts_k[0] == 0 and len(starts_q) == len(starts_k)
        assert (starts_q[-1], starts_k[-1]) == (len(q), len(k)) and len(k) == len(v)
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        rows = []
        for row in range(len(starts_q) - 1):
            first, last = starts_k[row], starts_k[row + 1]
            length = starts_q[row + 1] - starts_q[row]
            assert 0 < length <= max_seqlen_q and 0 < last - first <= max_seqlen_k
            for position in range(length):
                # causal: aligned to the bottom right corner
                end = last - (length - 1 - position) if causal else last
                query = q[starts_q[row] + position].double()
                scores = torch.einsum("ak,sak->as", query, k[first:end].double()) * scale
                rows.append(torch.einsum("as,sak->ak", scores.softmax(-1), v[first:end].double()))
        return torch.stack(rows).to(q.dtype)

    return flash_attn_varlen_func


@pytest.fixture
def stand_in(monkeypatch):
    """`import flash_attn` gives the stand-in; its calls."""
    calls: list[dict] = []
    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = varlen_by_loops(calls)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return calls


@pytest.fixture
def missing(monkeypatch):
    """`import flash_attn` fails."""
    monkeypatch.setitem(sys.modules, "flash_attn", None)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention_is_unscaled_softmax(dtype, tolerance, padded):
    """Results and gradients; 12 heads of 64 over 300 positions."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 12, 9, 64), (2, 12, 300, 64), (2, 12, 300, 64), (2, 12, 9, 64))
    q, k, v, direction = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    q = q / 4
    mask = (torch.arange(300) < torch.tensor([[300], [17]]))[:, None, None] if padded else None

    def results(function, *inputs):
        leaves = [x.detach().requires_grad_() for x in inputs]
        context = function(*leaves)
        return context, *torch.autograd.grad(context, leaves, direction.to(context.dtype))

    def plain(queries, keys, values):
        weights = (queries @ keys.transpose(-1, -2)).exp()
        weights = weights if mask is None else weights * mask
        return (weights / weights.sum(-1, keepdim=True)) @ values

    ours = results(lambda *qkv: attend(*qkv, mask), q, k, v)
    exact = results(plain, q.double(), k.double(), v.double())
    for one, other in zip(ours, exact, strict=True):
        assert error(one, other) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_sdpa_passes_its_test(dtype, tolerance):
    backend, line = backends.choose_backend("sdpa", CPU, dtype)
    assert backend == "sdpa" and "relative error" in line
    assert 0 < backends.self_test("sdpa", CPU, dtype, 64) < tolerance


def test_flash_passes_its_test(stand_in):
    """Through the stand-in, which sums gradients over positions in bf16."""
    assert backends.self_test("flash", CPU, torch.bfloat16, 64) < 2e-2
    assert [call["causal"] for call in stand_in] == [False, True]
    assert [call["keys"] for call in stand_in] == [70 + 1 + 33, 3 * 70]


@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("mask", [None, MASK])
def test_a_model_with_flash_is_the_model_with_sdpa(stand_in, monkeypatch, positions, mask):
    """Loss and gradients; in float64, which the stand-in takes, so that nothing hides an error."""
    monkeypatch.setattr(backends, "FLASH_TYPES", (torch.float64,))
    model = random_model(positions=positions).double()
    model(IDS, mask, LABELS).loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert not stand_in
    model.zero_grad()
    model.decoder.attention_backend = "flash"
    model(IDS, mask, LABELS).loss.backward()
    for name, parameter in model.named_parameters():
        assert error(parameter.grad, expected[name]) < 1e-10, name
    # A block's cross-attention, and where no bias is needed its self-attention before it.
    causal = [True, False] if positions == "rotary" else [False]
    assert [call["causal"] for call in stand_in] == causal * 2
    source = [call["keys"] for call in stand_in if not call["causal"]]
    assert source == [IDS.numel() if mask is None else int(mask.sum())] * 2


@pytest.mark.parametrize("training", [True, False])
def test_attention_weights_are_dropped_in_training(stand_in, training):
    model = random_model(positions="rotary", dropout=0.25).train(training)
    model.decoder.attention_backend = "flash"
    with torch.autocast("cpu", torch.bfloat16):
        model(IDS, MASK, LABELS)
    assert {call["dropout_p"] for call in stand_in} == {0.25 if training else 0.0}
    assert {call["type"] for call in stand_in} == {torch.bfloat16}


def test_sdpa_drops_attention_weights():
    """Of the sum of equal weights over ones, a share of about 1 - p, divided by 1 - p."""
    ones = torch.ones(1, 1, 1000, 1)
    sums = attend(torch.zeros(1, 1, 1000, 1), ones, ones, dropout=0.5)
    assert sums.std() > 0.01 and abs(sums.mean() - 1) < 0.01
    model = random_model(dropout=0.5)
    attention = model.decoder.blocks[0].cross_attention
    assert attention.drop == 0 and attention.train().drop == 0.5


def test_auto_says_why_it_is_not_flash(missing):
    model = random_model()
    line = use_attention(model.decoder, "auto", CPU, torch.bfloat16)
    assert model.decoder.attention_backend == "sdpa"
    assert (
        line.startswith("attention: sdpa") and "not flash: flash-attn needs a CUDA device" in line
    )


def test_a_missing_flash_asked_for_by_name_is_an_error(missing):
    with pytest.raises(ValueError, match=r"cannot be imported.*requirements-gpu\.txt"):
        backends.choose_backend("flash", torch.device("cuda"), torch.bfloat16)
    model = random_model()
    model.decoder.attention_backend = "flash"
    with pytest.raises(ValueError, match=r"requirements-gpu\.txt"):
        model(IDS, MASK, LABELS)


def test_flash_without_its_device_or_type_is_an_error(stand_in):
    with pytest.raises(ValueError, match="needs a CUDA device, and this is cpu"):
        backends.choose_backend("flash", CPU, torch.bfloat16)
    with pytest.raises(ValueError, match="and float16, not torch"):
        backends.choose_backend("flash", torch.device("cuda"), torch.float32)
    model = random_model()
    model.decoder.attention_backend = "flash"
    with pytest.raises(ValueError, match="run in bf16 autocast"):
        model(IDS, MASK, LABELS)
    with pytest.raises(ValueError, match="auto, sdpa or flash"):
        backends.choose_backend("flush", CPU, torch.float32)


@pytest.mark.parametrize("fault", ["wrong scale", "nan", "exception"])
def test_a_faulty_flash_is_an_error_not_a_fallback(stand_in, monkeypatch, fault):
    """Also where nobody asked for it by name."""
    right = sys.modules["flash_attn"].flash_attn_varlen_func

    def faulty(*args, **kwargs):
        if fault == "exception":
            raise RuntimeError("only Ampere GPUs or newer")
        if fault == "nan":
            return right(*args, **kwargs) * torch.nan
        return right(*args, **{**kwargs, "softmax_scale": None})

    sys.modules["flash_attn"].flash_attn_varlen_func = faulty
    monkeypatch.setattr(backends, "flash_obstacle", lambda device, dtype: None)
    with pytest.raises(ValueError, match=r"backend flash .*attention sdpa"):
        backends.choose_backend("auto", CPU, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_flash_on_a_gpu():
    pytest.importorskip("flash_attn")
    assert backends.choose_backend("auto", torch.device("cuda"), torch.bfloat16)[0] == "flash"


def test_rotation_is_multiplication_by_unit_complex_numbers():
    config = LocostConfig(positions="rotary", head_dim=8, rotary_base=100.0)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    pairs = torch.view_as_complex(x.clone().unflatten(-1, (4, 2)))
    for t in range(5):
        for i in range(4):
            pairs[:, :, t, i] *= cmath.exp(1j * t / 100 ** (i / 4))
    ours = rotate(x, rotation(config, 5, torch.float64, CPU))
    assert error(ours, torch.view_as_real(pairs).flatten(-2)) < 1e-14


def test_rotated_scores_depend_on_the_distance_alone():
    config = LocostConfig(positions="rotary", head_dim=8)
    angles = rotation(config, 60, torch.float64, CPU)
    q, k = (torch.randn(1, 10, 8, dtype=torch.float64) for _ in range(2))
    here, there = (
        rotate(q, angles[start : start + 10]) @ rotate(k, angles[start : start + 10]).mT
        for start in (0, 47)
    )
    assert error(here, there) < 1e-12
    assert error(here, q @ k.mT) > 0.1


def test_rotary_models_have_no_bias_and_see_the_order():
    model = random_model(positions="rotary").double()
    assert not [
        name for name, _ in model.named_parameters() if "bias" in name and "ssm" not in name
    ]
    states = model.encode(IDS, MASK)
    targets = torch.randn(3, 6, 16, dtype=torch.float64)
    swapped = targets[:, [1, 0, 2, 3, 4, 5]]
    last, other = (model.decoder(x, states, MASK)[:, -1] for x in (targets, swapped))
    assert error(last, other) > 1e-6


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_recomputed_blocks_have_the_same_gradients(positions):
    """A block under activation checkpointing, as training may run it."""
    model = random_model(positions=positions, dropout=0.1).double().train()
    states = torch.randn(3, 13, 16, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(3, 6, 16, dtype=torch.float64)
    gradients = []
    for block in model.decoder.blocks:
        plain = block.forward
        recomputed = lambda *x, plain=plain: checkpoint(plain, *x, use_reentrant=False)  # noqa: E731
        for forward in (plain, recomputed):
            block.forward = forward
            torch.manual_seed(5)
            loss = model.decoder(targets, states, MASK).square().sum()
            gradients.append(torch.autograd.grad(loss, [states, *block.parameters()]))
        block.forward = plain
    for kept, again in zip(gradients[::2], gradients[1::2], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(kept, again, strict=True))


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_blocks_compile_whole_and_once(positions):
    """Without a break in the graph; other targets and sources of the same lengths add none."""
    model = random_model(positions=positions)
    states, targets = torch.randn(3, 13, 16), torch.randn(3, 6, 16)
    expected = model.decoder(targets, states, MASK)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    for block in model.decoder.blocks:
        block.compile(backend=count, fullgraph=True)
    for _ in range(3):
        assert error(model.decoder(targets, states, MASK), expected) < 1e-6
    torch.compiler.reset()
    assert len(graphs) <= len(model.decoder.blocks)
