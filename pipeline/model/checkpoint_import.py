"""Weights of the published code, under its key names, as weights of ours."""

import re

# Published names -> ours, applied in order to a whole key.
_RENAMED = (
    (r"^shared\.", "embedding."),
    (r"^lm_head\.", "head."),
    (r"^(encoder|decoder)\.final_layer_norm\.", r"\1.norm."),
    (
        r"^decoder\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.",
        "decoder.relative_bias.",
    ),
    (r"^encoder\.block\.(\d+)\.layer\.0\.layer_prenorm\.", r"encoder.blocks.\1.ssm_norm."),
    (r"^encoder\.block\.(\d+)\.layer\.0\.ssm_layer\.(?:kernel\.)?", r"encoder.blocks.\1.ssm."),
    (r"\.ssm\.output_linear\.", ".ssm.output."),
    (r"^encoder\.block\.(\d+)\.layer\.1\.", r"encoder.blocks.\1.feed_forward."),
    (r"^decoder\.block\.(\d+)\.layer\.0\.", r"decoder.blocks.\1.self_attention."),
    (r"^decoder\.block\.(\d+)\.layer\.1\.", r"decoder.blocks.\1.cross_attention."),
    (r"^decoder\.block\.(\d+)\.layer\.2\.", r"decoder.blocks.\1.feed_forward."),
    (r"\.(?:SelfAttention|EncDecAttention|DenseReluDense)\.", "."),
    (r"\.(self_attention|cross_attention|feed_forward)\.layer_norm\.", r".\1_norm."),
)
# Copies of the embedding that the published code saves beside it.
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def our_name(published: str) -> str:
    """Our name of a published key; a key that is not one keeps its name."""
    for pattern, replacement in _RENAMED:
        published = re.sub(pattern, replacement, published)
    return published
