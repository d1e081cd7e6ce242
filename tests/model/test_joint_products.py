"""Products that share their input, and the one rounded copy of the states, under autocast."""

import pytest
import torch
from torch.nn import functional

from pipeline.model import Locost, LocostConfig
from pipeline.model.attention import Attention
from pipeline.model.cross_attention import Whole
from pipeline.model.layers import GatedFeedForward, gated_gelu

CONFIG = LocostConfig(d_model=16, d_ff=24, num_heads=2, head_dim=8, vocab_size=40, state_dim=4,
                      encoder_layers=1, decoder_layers=3)  # fmt: skip
BF16 = torch.autocast("cpu", torch.bfloat16)


def gradients(result, inputs, direction):
    return torch.autograd.grad(result, inputs, direction.to(result.dtype))


def test_the_gate_and_its_gradient_are_autograds():
    joint = torch.randn(3, 5, 14, dtype=torch.float64, requires_grad=True)
    a, b = joint.chunk(2, dim=-1)
    plain, direction = functional.gelu(a, approximate="tanh") * b, torch.randn(3, 5, 7).double()
    ours = gated_gelu(joint)
    torch.testing.assert_close(ours, plain, rtol=1e-14, atol=1e-14)
    found, expected = (gradients(x, joint, direction)[0] for x in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", ["feed-forward", "attention"])
def test_joined_products_are_the_separate_ones(kind, monkeypatch):
    """To the rounding of bf16."""
    module = GatedFeedForward(CONFIG) if kind == "feed-forward" else Attention(CONFIG)
    x = torch.randn(3, 5, 16, dtype=torch.bfloat16).requires_grad_()
    leaves = [x, *(p for name, p in module.named_parameters() if name[0] in "wkv")]

    def run():
        with BF16:
            result = module(x) if kind == "feed-forward" else torch.stack(module.keys_values(x))
        torch.manual_seed(1)
        return result, gradients(result, leaves, torch.randn(result.shape))

    products = []
    real = functional.linear
    monkeypatch.setattr(functional, "linear", lambda *a: products.append(a) or real(*a))
    result, grads = run()
    assert len(products) == (2 if kind == "feed-forward" else 1)
    monkeypatch.setattr("pipeline.model.layers.joins_products", lambda *_: False)
    monkeypatch.setattr("pipeline.model.attention.joins_products", lambda *_: False)
    expected, expected_grads = run()
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-3)
    for found, right in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(found, right, rtol=3e-2, atol=1e-2 * right.abs().max().item())


def test_products_are_not_joined_where_that_takes_a_copy(monkeypatch):
    """In fp32, and without gradients, as in decoding."""

    def refused(*_):
        raise AssertionError("joined")

    monkeypatch.setattr(torch, "cat", refused)
    module, x = GatedFeedForward(CONFIG), torch.randn(1, 1, 16)
    module(x)
    with BF16, torch.no_grad():
        module(x)
    with BF16, pytest.raises(AssertionError, match="joined"):
        module(x)


@pytest.mark.parametrize("recompute", [False, True])
def test_all_readers_share_one_rounded_copy_of_the_states(recompute, monkeypatch):
    model = Locost(CONFIG).train()
    model.recompute_activations(recompute)
    states = torch.randn(2, 7, 16, requires_grad=True)
    targets = torch.randn(2, 4, 16)
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x)
    with hooks, BF16:
        decoded = model.decoder(targets, states, None)
    direction = torch.randn(decoded.shape)
    (found,) = gradients(decoded, states, direction)
    copies = {x.untyped_storage().data_ptr() for x in kept if x.shape == (2 * 7, 16)}
    assert found.dtype == torch.float32
    if not recompute:
        assert len(copies) == 1

    # As if each reader rounded for itself: gradients in bf16, added up in fp32.
    def attend(self, attention, x):
        return attention(x, *attention.keys_values(states.to(torch.bfloat16)), None)

    monkeypatch.setattr(Whole, "attend", attend)
    with BF16:
        decoded = model.decoder(targets, states, None)
    (expected,) = gradients(decoded, states, direction)
    assert torch.equal(found, expected)
