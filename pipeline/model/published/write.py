"""Our weights and configuration under the published code's names."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from ..config import INITIALISATION, LocostConfig
from ..locost import Locost
from .names import COPIES, EMBEDDING, FIXED, FUSED, HEAD, SETTINGS, published_name


def export_config(config: LocostConfig) -> dict[str, Any]:
    """The published code's settings for a configuration; `published_config` reads them back.

    Raises ValueError naming a setting that the published code cannot express.
    """
    expressed = {*SETTINGS.values(), "state_dim", "decoder_layers", "published_convolution"}
    expressed |= INITIALISATION  # not needed with weights
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in expressed and value != field.default:
            raise ValueError(
                f"{field.name}={value!r} cannot be expressed in the published configuration, which "
                f"means {field.default!r}; use --format huggingface, which supports every variant"
            )
    return {
        **{published: getattr(config, ours) for published, ours in SETTINGS.items()},
        **FIXED,
        "d_state": 2 * config.state_dim,
        "num_decoder_layers": config.decoder_layers,
        FUSED: config.published_convolution,
    }


def export_weights(model: Locost) -> dict[str, Tensor]:
    """The weights by published name, with the copies of the embedding that its files contain.

    No two share memory, as safetensors requires.
    """
    weights = {published_name(name): tensor for name, tensor in model.state_dict().items()}
    copies = (*COPIES, HEAD) if model.config.tie_embeddings else COPIES
    return weights | {name: weights[EMBEDDING].clone() for name in copies}
