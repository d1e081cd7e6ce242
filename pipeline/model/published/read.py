"""Our weights and configuration from those of the published code."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import LocostConfig
from ..folder import build_model
from ..locost import Locost
from .names import COPIES, EMBEDDING, FIXED, HEAD, SETTINGS, our_name


def published_config(published: Mapping[str, Any]) -> LocostConfig:
    """Our configuration from the published code's config.json.

    Its d_state counts the conjugate modes too; tied embeddings, the default of its library, are
    omitted from the file. Raises ValueError naming a setting that is missing or describes another
    architecture.
    """
    published = {"tie_word_embeddings": True, **published}
    missing = [name for name in (*SETTINGS, "d_state") if name not in published]
    if missing:
        raise ValueError(
            f"not a published LOCOST configuration: it lacks {', '.join(missing)}; add them"
        )
    for name, value in FIXED.items():
        if published.get(name, value) != value:
            raise ValueError(
                f"{name}={published[name]!r} is another architecture; expected {value!r}"
            )
    d_state = published["d_state"]
    if not isinstance(d_state, int) or d_state % 2:
        raise ValueError(f"d_state={d_state!r} must be an even number: modes and conjugates")
    settings = {ours: published[name] for name, ours in SETTINGS.items()}
    return LocostConfig(
        **settings,
        state_dim=d_state // 2,
        decoder_layers=published.get("num_decoder_layers") or published["num_layers"],
    )


def deduced_config(weights: Mapping[str, Tensor]) -> LocostConfig:
    """A configuration from the shapes of published weights, and our defaults for the rest.

    Tied if no lm_head differs from the embedding. Raises ValueError if a required key is missing.
    """
    try:
        embedding = weights[EMBEDDING]
        modes = weights["encoder.block.0.layer.0.ssm_layer.kernel.inv_A_real"]
        inner = weights["decoder.block.0.layer.0.SelfAttention.q.weight"]
        bias = weights["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        wide = weights["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"]
    except KeyError as error:
        raise ValueError(f"not published LOCOST weights: missing {error.args[0]}") from None
    matrices = embedding, modes, inner, bias, wide
    if any(tensor.dim() != 2 or 0 in tensor.shape for tensor in matrices):
        raise ValueError("not published LOCOST weights: a matrix has another shape, or is empty")
    head = weights.get(HEAD)
    return LocostConfig(
        vocab_size=embedding.shape[0],
        d_model=embedding.shape[1],
        state_dim=modes.shape[1],
        d_ff=wide.shape[0],
        encoder_layers=_layers("encoder", weights),
        decoder_layers=_layers("decoder", weights),
        num_heads=bias.shape[1],
        head_dim=inner.shape[0] // bias.shape[1],
        tie_embeddings=head is None or torch.equal(head, embedding),
        relative_buckets=bias.shape[0],
    )


def import_weights(
    config: LocostConfig, published: Mapping[str, Tensor], origin: str = "weights"
) -> Locost:
    """Our model with the published weights, every key used once.

    Copies of the embedding (encoder, decoder, and the head of a tied model) must equal it. Raises
    ValueError that names differing copies, missing and surplus keys, and wrong shapes.
    """
    if EMBEDDING not in published:
        raise ValueError(f"{origin}: not published LOCOST weights: missing {EMBEDDING}")
    embedding = published[EMBEDDING]
    copies = (*COPIES, HEAD) if config.tie_embeddings else COPIES
    for name in copies:
        if not torch.equal(published.get(name, embedding), embedding):
            raise ValueError(
                f"{origin}: {name} differs from shared.weight, which it should copy"
                + (
                    "; set tie_word_embeddings to false in config.json for a model with a "
                    "separate head"
                    if name == HEAD
                    else ""
                )
            )
    weights = {our_name(name): tensor for name, tensor in published.items() if name not in copies}
    return build_model(config, weights, origin)


def _layers(part: str, weights: Mapping[str, Tensor]) -> int:
    found = (re.match(rf"{part}\.block\.(\d+)\.", name) for name in weights)
    return 1 + max(int(match[1]) for match in found if match)
