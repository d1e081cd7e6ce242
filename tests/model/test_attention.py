"""Attention kernels against a plain softmax in float64, and how one is chosen.

flash-attn runs on GPUs only. Where there is none, a stand-in of the same documented interface,
written as loops over rows, shows that padding is removed and put back rightly.
"""

import sys
from types import SimpleNamespace

import pytest
import torch
from locost_golden import error, random_model

from pipeline.model import attention_backends
from pipeline.model.attention import Attention, rotate, rotation
from pipeline.model.attention_backends import BACKENDS, choose_backend
from pipeline.model.config import LocostConfig
from pipeline.model.cross_attention import Whole, spread
from pipeline.model.decoder import use_attention

CPU = torch.device("cpu")
IDS = torch.randint(2, 40, (4, 13), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(13) < torch.tensor([[13], [4], [9], [1]])).long()
LABELS = torch.randint(2, 40, (4, 6), generator=torch.Generator().manual_seed(4))


def plain_softmax(module, x, states, mask):
    """Cross-attention one head, row and position at a time, in float64."""
    rows = []
    for b, t in torch.cartesian_prod(torch.arange(len(x)), torch.arange(x.shape[1])).tolist():
        real = states[b][mask[b].bool()]
        heads = []
        for head in range(module.heads):
            size = module.q.out_features // module.heads
            part = slice(head * size, (head + 1) * size)
            q, k, v = (layer.weight[part] for layer in (module.q, module.k, module.v))
            scores = (real @ k.t()) @ (q @ x[b, t])
            weights = (scores - scores.max()).exp()
            heads.append((weights / weights.sum()) @ (real @ v.t()))
        rows.append(module.o.weight @ torch.cat(heads))
    return torch.stack(rows).view(x.shape)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_cross_attention_and_its_gradients(dtype, tolerance):
    torch.manual_seed(0)
    config = LocostConfig(d_model=64, num_heads=4, head_dim=16)
    module, exact = Attention(config), Attention(config).double()
    exact.load_state_dict(module.state_dict())
    states, x, weights = torch.randn(2, 300, 64), torch.randn(2, 3, 64), torch.randn(2, 3, 64)
    mask = (torch.arange(300) < torch.tensor([[300], [170]])).long()

    def run(module, x, states, attend):
        x, states = x.clone().requires_grad_(), states.clone().requires_grad_()
        output = attend(module, x, states)
        (output.to(weights.dtype) * weights).sum().backward()
        grads = [x.grad, states.grad, *(p.grad for p in module.parameters())]
        return [output, *grads]

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        ours = run(module, x, states, lambda m, x, s: Whole(s, spread(mask)).attend(m, x))
    wanted = run(exact, x.double(), states.double(), lambda m, x, s: plain_softmax(m, x, s, mask))
    assert all(error(a, b) < tolerance for a, b in zip(ours, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["auto", "sdpa"])
def test_the_choice_is_tested_and_said(name, dtype):
    backend, reason = choose_backend(name, CPU, dtype)
    assert backend == "sdpa"
    assert "relative error" in reason
    assert ("not flash" in reason) == (name == "auto")


def test_what_cannot_be_had_is_an_error_and_never_replaced(monkeypatch):
    with pytest.raises(ValueError, match=r"flash cannot be had.*requirements-gpu\.txt"):
        choose_backend("flash", CPU, torch.bfloat16)
    with pytest.raises(ValueError, match=r"xformers.*auto, sdpa or flash"):
        choose_backend("xformers", CPU, torch.bfloat16)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=None))
    with pytest.raises(ValueError, match="needs a CUDA device"):
        choose_backend("flash", CPU, torch.bfloat16)
    with pytest.raises(ValueError, match=r"not torch\.float32: set precision bf16"):
        choose_backend("flash", torch.device("cuda"), torch.float32)
    # auto does not try it where its type is wrong, and says so
    assert "not torch.float32" in attention_backends.flash_obstacle(
        torch.device("cuda"), torch.float32
    )


@pytest.mark.parametrize("fault", ["scaled", "raises"])
def test_a_wrong_kernel_is_found_at_the_start(fault, monkeypatch):
    def wrong(queries, keys, values, mask):
        if fault == "raises":
            raise RuntimeError("no kernel image")
        return attention_backends.sdpa_masked(queries * 1.001, keys, values, mask)

    monkeypatch.setitem(BACKENDS, "sdpa", wrong)
    with pytest.raises(ValueError, match=r"attention backend sdpa (is wrong|fails) in float32 on"):
        choose_backend("sdpa", CPU, torch.float32)


class StandIn:
    """flash_attn_varlen_func as documented, row by row; keeps what it was given."""

    def __init__(self):
        self.calls = []

    def __call__(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        self.calls.append({"scale": softmax_scale, "causal": causal, "keys": len(k)})
        rows = []
        for start, stop, first, last in zip(
            cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:], strict=True
        ):
            assert 0 < stop - start <= max_seqlen_q and 0 < last - first <= max_seqlen_k
            scores = torch.einsum("tak,sak->ats", q[start:stop], k[first:last]) * softmax_scale
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            rows.append(torch.einsum("ats,sak->tak", scores.softmax(-1), v[first:last]))
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        assert cu_seqlens_q[-1] == len(q) and cu_seqlens_k[-1] == len(k) == len(v)
        return torch.cat(rows)


@pytest.fixture
def flash(monkeypatch):
    stand_in = StandIn()
    module = SimpleNamespace(flash_attn_varlen_func=stand_in)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    types = (*attention_backends.FLASH_TYPES, torch.float64)  # to compare exactly
    monkeypatch.setattr(attention_backends, "FLASH_TYPES", types)
    return stand_in


@pytest.mark.parametrize("mask", [MASK, None])
@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_flash_removes_the_padding_and_changes_nothing(flash, positions, mask):
    def loss_and_gradients(backend):
        model = random_model(positions=positions).double()
        model.decoder.attention_backend = backend
        output = model(IDS, mask, LABELS)
        output.loss.backward()
        return [output.logits, *(parameter.grad for parameter in model.parameters())]

    ours, wanted = loss_and_gradients("flash"), loss_and_gradients("sdpa")
    assert all(error(a, b) < 1e-12 for a, b in zip(ours, wanted, strict=True))
    real = int(MASK.sum()) if mask is not None else IDS.numel()
    cross = {"scale": 1.0, "causal": False, "keys": real}
    own = {"scale": 1.0, "causal": True, "keys": LABELS.numel()}
    assert flash.calls == ([own, cross] * 2 if positions == "rotary" else [cross] * 2)


def test_flash_is_tested_like_any_other(flash):
    assert attention_backends.self_test("flash", CPU, torch.bfloat16, 64) < 2e-2
    assert {call["causal"] for call in flash.calls} == {False, True}


def test_flash_does_not_take_float32(flash):
    model = random_model()
    model.decoder.attention_backend = "flash"
    with pytest.raises(ValueError, match=r"torch\.float32.*bf16 autocast"):
        model(IDS, MASK, LABELS)


def test_the_line_names_what_serves_the_learned_bias(monkeypatch):
    monkeypatch.setattr(
        "pipeline.model.decoder.choose_backend", lambda *_: ("flash", "flash (tested)")
    )
    line = use_attention(random_model().decoder, "auto", CPU, torch.bfloat16)
    assert "self-attention by sdpa" in line
    rotary = random_model(positions="rotary").decoder
    assert "sdpa" not in use_attention(rotary, "auto", CPU, torch.bfloat16)
    assert rotary.attention_backend == "flash"


def test_rotation_is_complex_multiplication():
    config = LocostConfig(head_dim=8, positions="rotary", rotary_base=100.0)
    x = torch.randn(2, 3, 50, 8, dtype=torch.float64)
    ours = rotate(x, rotation(config, 50, torch.float64, CPU))
    frequency = 100.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    turns = torch.exp(1j * torch.arange(50)[:, None] * frequency)
    wanted = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turns)
    assert error(ours, wanted.flatten(-2)) < 1e-14


def test_rotated_scores_depend_on_the_distance_alone():
    config = LocostConfig(head_dim=8, positions="rotary")
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 40, 8)
    angles = rotation(config, 40, torch.float64, CPU)
    scores = (rotate(q, angles) @ rotate(k, angles).transpose(-1, -2))[0, 0]
    for distance in (0, 1, 17):
        diagonal = scores.diagonal(-distance)
        assert error(diagonal, diagonal[:1].expand_as(diagonal)) < 1e-12
    assert error(scores[0], scores[0, :1].expand(40)) > 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["sdpa", "flash"])
def test_kernels_on_a_gpu(name):
    if name == "flash":
        pytest.importorskip("flash_attn", reason="needs requirements-gpu.txt")
    backend, _ = choose_backend(name, torch.device("cuda"), torch.bfloat16)
    assert backend == name
