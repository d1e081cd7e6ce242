"""Our weights and configuration under the published code's names."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from .checkpoint_names import COPIES, EMBEDDING, FIXED, FUSED, HEAD, SETTINGS, published_name
from .config import INITIALISATION, LocostConfig
from .locost import Locost


def export_config(config: LocostConfig) -> dict[str, Any]:
    """The published code's settings for a configuration; `published_config` reads them back.

    Raises ValueError that names a setting which the published code has no word for.
    """
    said = {*SETTINGS.values(), "state_dim", "decoder_layers", "published_convolution"}
    said |= INITIALISATION  # the weights are there
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in said and value != field.default:
            raise ValueError(
                f"{field.name}={value!r} has no word in the published configuration, which means "
                f"{field.default!r}; --format huggingface carries every variant"
            )
    return {
        **{published: getattr(config, ours) for published, ours in SETTINGS.items()},
        **FIXED,
        "d_state": 2 * config.state_dim,
        "num_decoder_layers": config.decoder_layers,
        FUSED: config.published_convolution,
    }


def export_weights(model: Locost) -> dict[str, Tensor]:
    """The weights by published name, with the copies of the embedding that its files hold.

    No two share memory, as safetensors demands.
    """
    weights = {published_name(name): tensor for name, tensor in model.state_dict().items()}
    copies = (*COPIES, HEAD) if model.config.tie_embeddings else COPIES
    return weights | {name: weights[EMBEDDING].clone() for name in copies}
