"""Initial weights: time scales of the encoder, and a decoder that copies."""

import math

import pytest
import torch

from pipeline.model import Locost, LocostConfig
from pipeline.model.attention import attend

SIZES = {
    "vocab_size": 200, "d_model": 64, "state_dim": 4, "d_ff": 32, "encoder_layers": 1,
    "decoder_layers": 1,
}  # fmt: skip


def test_steps_lie_within_the_given_bounds():
    config = LocostConfig(ssm_dt_min=0.5, ssm_dt_max=2.0, num_heads=2, head_dim=16, **SIZES)
    log_dt = Locost(config).encoder.blocks[0].ssm.log_dt
    assert math.log(0.5) <= log_dt.min() < log_dt.max() <= math.log(2)


def test_the_published_start_is_the_default():
    config = LocostConfig(num_heads=2, head_dim=16, **SIZES)
    torch.manual_seed(0)
    plain = Locost(config).state_dict()
    torch.manual_seed(0)
    log_dt = Locost(config).encoder.blocks[0].ssm.log_dt
    assert math.log(1e-3) <= log_dt.min() < log_dt.max() <= math.log(0.1)
    attention = "decoder.blocks.0.cross_attention"
    assert not torch.equal(plain[f"{attention}.q.weight"], plain[f"{attention}.k.weight"])


@pytest.mark.parametrize(("heads", "channels"), [(2, 16), (2, 32), (4, 32)])
def test_copying_returns_what_equals_the_query(heads, channels):
    """Fewer channels in all heads than the model has, as many, and more."""
    torch.manual_seed(0)
    config = LocostConfig(
        cross_attention_initialisation="copy", num_heads=heads, head_dim=channels, **SIZES
    )
    attention = Locost(config).decoder.blocks[0].cross_attention.double()
    tokens = torch.randn(1, 50, 64, dtype=torch.float64)
    keys, values = attention.keys_values(tokens)
    # The value path is the identity, or a projection on as many channels as the heads have.
    handed_on = attention.output(values)[0]
    onto = attention.v.weight.T @ attention.v.weight
    float32 = {"atol": 1e-5, "rtol": 0.0}  # in which it was drawn
    torch.testing.assert_close(onto @ onto, onto, **float32)
    assert torch.linalg.matrix_rank(onto, atol=1e-3) == min(64, heads * channels)
    torch.testing.assert_close(handed_on, tokens[0] @ onto, **float32)
    # A token finds itself, and is the likeliest of all fifty in what comes out.
    found = attention.output(attend(attention.queries(tokens), keys, values))[0]
    assert (found @ tokens[0].T).argmax(-1).eq(torch.arange(50)).double().mean() > 0.5


def test_only_the_cross_attention_copies():
    torch.manual_seed(0)
    config = LocostConfig(cross_attention_initialisation="copy", num_heads=2, head_dim=16, **SIZES)
    block = Locost(config).decoder.blocks[0]
    assert torch.equal(block.cross_attention.q.weight, block.cross_attention.k.weight)
    assert not torch.equal(block.self_attention.q.weight, block.self_attention.k.weight)
