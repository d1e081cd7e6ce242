"""The encoder in token blocks, with gradient checkpointing, and compiled, against the plain one."""

import pytest
import torch
from locost_golden import error, golden, gradients, random_model, tiny_model

from pipeline.model import long_conv, ssm
from pipeline.model.published.names import our_name

INPUTS = (golden["input_ids"], golden["attention_mask"], golden["labels"])


@torch.no_grad()
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("length", [1, 64, 1000, 1999])
def test_long_inputs_are_the_unblocked_result(length, autocast, monkeypatch):
    """Token blocks, truncated kernels and overlap-save at once; a mask with padding."""
    model = random_model(ssm_directions="separate", encoder_layers=3)
    for block in model.encoder.blocks:
        block.ssm.log_dt[:14] = torch.linspace(-3, 0, 14)  # kernels that end, and two that do not
    ids = torch.randint(0, 40, (2, length))
    mask = (torch.arange(length) < torch.tensor([[length], [max(1, length - 7)]])).long()
    with torch.enable_grad():
        whole = model.encode(ids, mask)
        in_bf16 = torch.autocast("cpu", torch.bfloat16)
        with in_bf16:
            rounded = model.encode(ids, mask)
    model.encoder.use_token_blocks(100)
    monkeypatch.setattr(ssm, "TRUNCATED_FROM", 1)
    monkeypatch.setattr(ssm, "BLOCK_ELEMENTS", {"cpu": 1})  # each channel alone
    monkeypatch.setattr(long_conv, "SHORTEST_FFT", 64)
    if not autocast:
        assert error(model.encode(ids, mask), whole) < 3e-6
        return
    with torch.autocast("cpu", torch.bfloat16):
        blocked = model.encode(ids, mask)
    # Another order of summing may round a key or a gate the other way: within bf16's own error.
    assert error(blocked, whole) < max(2 * error(rounded, whole), 1e-2)


def loss_and_gradients(model):
    loss = model(*INPUTS).loss
    loss.backward()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


def test_recomputed_activations_give_the_same_loss_and_gradients():
    plain, recomputing = tiny_model(), tiny_model()
    recomputing.recompute_activations()
    passes = []
    recomputing.encoder.blocks[0].feed_forward.register_forward_pre_hook(
        lambda *_: passes.append(1)
    )
    loss, found = loss_and_gradients(recomputing)
    expected_loss, expected = loss_and_gradients(plain)
    assert torch.equal(loss, expected_loss)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert len(passes) == 2  # computed again in the backward pass
    with torch.no_grad():
        recomputing(*INPUTS)
    assert len(passes) == 3


def test_recomputation_repeats_dropout():
    def gradients_of(recompute):
        model = random_model(dropout=0.2).train()
        model.recompute_activations(recompute)
        torch.manual_seed(5)
        ids = torch.arange(2, 20).view(2, 9)
        model(ids, labels=ids).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    assert all(map(torch.equal, gradients_of(True), gradients_of(False)))


@pytest.mark.soak  # test_trainer.py compiles blocks too
def test_compiled_blocks_give_the_published_loss_and_gradients():
    """Compiled once, as the trainer does, and used with and without recomputation."""
    model = tiny_model()
    model.compile_blocks(dynamic=True)
    names = set(model.state_dict())
    for recompute in (True, False):
        model.zero_grad(set_to_none=True)
        model.recompute_activations(recompute)
        loss, found = loss_and_gradients(model)
        assert error(loss, golden["f64.loss"]) < 1e-5
        for name, expected in gradients.items():
            assert error(found[our_name(name)], expected) < 1e-4
    assert set(model.state_dict()) == names == set(tiny_model().state_dict())
