"""Impossible sizes are refused, naming value and remedy."""

from dataclasses import replace

import pytest

from pipeline.model import LocostConfig


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_model": 0}, "d_model=0 is impossible: give at least 1"),
        ({"state_dim": 2.5}, "state_dim=2.5 .* type int"),
        ({"num_heads": True}, "num_heads=True .* type int"),
        ({"d_ff": "64"}, "d_ff='64' .* type int"),
        ({"dropout": 1.0}, "dropout=1.0 .* below 1"),
        ({"dropout": float("nan")}, "dropout=nan"),
        (
            {"d_model": 10**30},
            "d_model=1000000000000000000000000000000 is impossible: give a number",
        ),
        ({"vocab_size": 10**4000}, r"vocab_size=10{59}\.\.\. is impossible"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon=inf is impossible"),
        ({"rotary_base": 10**400}, "rotary_base=1.* is impossible: give a number from"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon=0.0 .* positive"),
        ({"relative_buckets": 31}, "relative_buckets=31 .* even"),
        ({"relative_max_distance": 16}, "relative_max_distance=16 .* half of relative_buckets"),
        ({"vocab_size": 1}, "eos_id=1 .* 0 to 0"),
        ({"eos_id": 0}, "eos_id=0 .* pad_id"),
        ({"ssm_dt_min": 0.2}, r"ssm_dt_min=0.2 .* at most ssm_dt_max \(0.1\)"),
        ({"ssm_dt_min": 0.0}, "ssm_dt_min=0.0 .* above 0"),
        ({"ssm_dt_max": 1.0, "ssm_initialisation": "paper"}, r"ssm_dt_max=1.0 .* U\[0, 1\]"),
        ({"cross_attention_initialisation": "zero"}, "give code or copy"),
    ],
)
def test_impossible_settings(change, message):
    with pytest.raises(ValueError, match=message):
        replace(LocostConfig(), **change)


def test_every_field_is_documented():
    source = __import__("inspect").getsource(LocostConfig)
    for name in LocostConfig.__dataclass_fields__:
        line = source.index(f"    {name}: ")
        assert source[line:].splitlines()[1].strip().startswith('"""'), name
