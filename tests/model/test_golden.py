"""The model against the numbers of the published code."""

from dataclasses import replace

import pytest
import torch
from locost_golden import error, golden, gradients, published, settings, tiny_model

from pipeline.model.published.read import import_weights, our_name, published_config

TOLERANCES = [(torch.float32, 1e-5), (torch.float64, 1e-9)]
INPUTS = (golden["input_ids"], golden["attention_mask"], golden["labels"])


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_forward(dtype, tolerance):
    output = tiny_model(dtype)(*INPUTS)
    assert output.logits.dtype == output.encoder_states.dtype == dtype
    assert error(output.encoder_states, golden["f64.encoder_last_hidden_state"]) < tolerance
    assert error(output.logits, golden["f64.logits"]) < tolerance
    assert error(output.loss, golden["f64.loss"]) < tolerance


def test_states_between_the_layers():
    """These are stored in float32 only, about 1.5e-5 off themselves."""
    model = tiny_model(torch.float64)
    states = {}

    def keep(name):
        return lambda module, inputs, output: states.update({name: output, f"{name}.in": inputs[0]})

    for name in ("encoder.blocks.0", "encoder.blocks.1", "decoder.norm"):
        model.get_submodule(name).register_forward_hook(keep(name))
    model(*INPUTS)
    for ours, name in (
        ("encoder.blocks.0", "encoder_after_block_0"),
        ("encoder.blocks.1", "encoder_after_block_1"),
        ("decoder.norm.in", "decoder_before_final_norm"),
        ("decoder.norm", "decoder_last_hidden_state"),
    ):
        assert error(states[ours], golden[name]) < 2e-5, name


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_layer(dtype, tolerance):
    layer = tiny_model(dtype).encoder.blocks[0].ssm
    causal, reverse = layer.kernels(64)
    assert error(causal, golden["f64.layer.kernel_fwd"]) < tolerance
    assert error(reverse, golden["f64.layer.kernel_rev"]) < tolerance
    u = golden["layer.u"].to(dtype)
    channels = layer.convolution(u.transpose(1, 2).contiguous())
    assert error(channels.transpose(1, 2), golden["f64.layer.bissm_of_u"]) < tolerance
    masked = layer(u, golden["layer.mask"])
    assert error(masked, golden["f64.layer.s4d_forward_of_u_masked"]) < tolerance
    assert error(layer(u), golden["layer.s4d_forward_of_u_unmasked"]) < 2e-5  # stored in float32


def test_gradients_of_all_parameters():
    model = tiny_model(torch.float64)
    model(*INPUTS).loss.backward()
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert len(gradients) == len(ours) == 66
    for name, reference in gradients.items():
        assert error(ours[our_name(name)], reference) < 1e-6, name


def test_sum_of_token_losses():
    model = tiny_model(torch.float64)
    tokens = (golden["labels"] != -100).sum()
    total = model(*INPUTS, loss_reduction="sum").loss
    assert error(total / tokens, golden["f64.loss"]) < 1e-12


def test_untied_head():
    config = published_config({**settings, "tie_word_embeddings": False})
    head = {"lm_head.weight": golden["untied.lm_head.weight"]}
    model = import_weights(config, {**published, **head}).eval()
    assert error(model(*INPUTS).logits, golden["untied.logits"]) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_greedy_decoding(dtype):
    model = tiny_model(dtype)
    ids = model.generate(*INPUTS[:2], max_new_tokens=20)
    assert ids.tolist() == golden["generate_greedy_20"].tolist()


def test_greedy_decoding_past_the_end():
    """With an end token that never comes, rows continue as in the golden run that ignored it."""
    reference = golden["greedy_20_ignoring_eos"]
    absent = next(id for id in range(2, 64) if not (reference == id).any())
    config = published_config({**settings, "eos_token_id": absent})
    model = import_weights(config, published).eval()
    ids = model.generate(*INPUTS[:2], max_new_tokens=20, min_new_tokens=20)
    assert ids.tolist() == reference.tolist()


def test_relative_buckets():
    """The distances at which the published code's buckets begin."""
    first = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    bias = tiny_model().decoder.relative_bias
    with torch.no_grad():
        bias.weight.copy_(torch.arange(32.0)[:, None].expand(32, 4))
    expected = [sum(distance >= start for start in first) - 1 for distance in range(300)]
    assert bias(300)[2].tolist() == expected


@torch.no_grad()
@pytest.mark.parametrize("length", [37, 50])
def test_published_convolution_fault_is_reproduced(length):
    """Only if enabled: without padding, at lengths that are not powers of two."""
    row = golden["attention_mask"].sum(1).tolist().index(length)
    inputs = (golden["input_ids"][row : row + 1, :length], None, golden["labels"][row : row + 1])
    exact = tiny_model()
    config = replace(exact.config, published_convolution=True)
    weights = {name: tensor.clone() for name, tensor in published.items()}
    output = import_weights(config, weights).eval()(*inputs)
    wanted = f"fastquirk.single{length}"
    assert error(output.encoder_states, golden[f"{wanted}.encoder_last_hidden_state"]) < 2e-5
    assert error(output.logits, golden[f"{wanted}.logits"]) < 2e-5
    assert error(exact(*inputs).encoder_states, output.encoder_states) > 0.1
    whole = (golden["input_ids"][:1], None, golden["labels"][:1])  # 64 positions
    assert error(import_weights(config, weights).eval()(*whole).logits, exact(*whole).logits) < 1e-6
