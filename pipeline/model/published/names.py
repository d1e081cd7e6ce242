"""Names of weights and settings in the published code and ours: one table for both directions."""

import re
from collections.abc import Iterable

# (published, ours): prefixes of keys, the first match counts; N is the number of a block.
_PREFIXES = (
    ("shared.", "embedding."),
    ("lm_head.", "head."),
    ("encoder.final_layer_norm.", "encoder.norm."),
    ("decoder.final_layer_norm.", "decoder.norm."),
    (
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.",
        "decoder.relative_bias.",
    ),
    ("encoder.block.N.layer.0.layer_prenorm.", "encoder.blocks.N.ssm_norm."),
    ("encoder.block.N.layer.0.ssm_layer.output_linear.", "encoder.blocks.N.ssm.output."),
    *(
        (f"encoder.block.N.layer.0.ssm_layer.{name}", f"encoder.blocks.N.ssm.{name}")
        for name in ("q_proj.", "k_proj.", "D")
    ),
    *(
        (f"encoder.block.N.layer.0.ssm_layer.kernel.{name}", f"encoder.blocks.N.ssm.{name}")
        for name in ("inv_A_real", "A_imag", "log_dt", "B", "C")
    ),
    ("encoder.block.N.layer.1.layer_norm.", "encoder.blocks.N.feed_forward_norm."),
    ("encoder.block.N.layer.1.DenseReluDense.", "encoder.blocks.N.feed_forward."),
    ("decoder.block.N.layer.0.layer_norm.", "decoder.blocks.N.self_attention_norm."),
    ("decoder.block.N.layer.0.SelfAttention.", "decoder.blocks.N.self_attention."),
    ("decoder.block.N.layer.1.layer_norm.", "decoder.blocks.N.cross_attention_norm."),
    ("decoder.block.N.layer.1.EncDecAttention.", "decoder.blocks.N.cross_attention."),
    ("decoder.block.N.layer.2.layer_norm.", "decoder.blocks.N.feed_forward_norm."),
    ("decoder.block.N.layer.2.DenseReluDense.", "decoder.blocks.N.feed_forward."),
)

EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Further copies of the embedding that the published code saves."""

SETTINGS = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "d_ff": "d_ff",
    "num_layers": "encoder_layers",
    "num_heads": "num_heads",
    "d_kv": "head_dim",
    "dropout_rate": "dropout",
    "tie_word_embeddings": "tie_embeddings",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "relative_attention_num_buckets": "relative_buckets",
    "relative_attention_max_distance": "relative_max_distance",
    "pad_token_id": "pad_id",
    "eos_token_id": "eos_id",
    "decoder_start_token_id": "start_id",
}
"""Published setting -> ours, for settings with the same meaning."""

FIXED = {
    "num_ssm_heads": 1,
    "gating": True,
    "bidirectional": True,
    "feed_forward_proj": "gated-gelu",
    "dense_act_fn": "gelu_new",
}
"""Published settings that are fixed in this model."""

FUSED = "use_fast_fft_conv"
"""The published setting of the fused convolution, wrong unless the length is a power of two."""


def our_name(published: str) -> str:
    """Our name of a published key; unknown keys keep their name."""
    return _renamed(published, _TO_OURS)


def published_name(ours: str) -> str:
    """The published key of one of our names; unknown names are kept."""
    return _renamed(ours, _TO_PUBLISHED)


def _renamed(name: str, rules: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in rules:
        if pattern.match(name):
            return pattern.sub(replacement, name, count=1)
    return name


def _rules(pairs: Iterable[tuple[str, str]]) -> list[tuple[re.Pattern[str], str]]:
    """Rules that replace the first prefix of a pair by the second."""
    return [
        (
            # A name without a final dot is complete: D is not a prefix of other names.
            re.compile(
                re.escape(old).replace(r"\.N\.", r"\.(\d+)\.") + ("" if old.endswith(".") else "$")
            ),
            new.replace(".N.", r".\1."),
        )
        for old, new in pairs
    ]


_TO_OURS = _rules(_PREFIXES)
_TO_PUBLISHED = _rules((ours, published) for published, ours in _PREFIXES)
