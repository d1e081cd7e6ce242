"""The configuration of an exported folder, for transformers.

Runs inside that folder, next to the modules of `pipeline/model` that it imports.
"""

from dataclasses import asdict, fields
from typing import Any, ClassVar

from transformers import PretrainedConfig

from .config import LocostConfig


class LocostPretrainedConfig(PretrainedConfig):
    """LocostConfig's fields as attributes, also under transformers' names where it has one."""

    model_type = "locost"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "decoder_layers",
        "num_attention_heads": "num_heads",
        "tie_word_embeddings": "tie_embeddings",
        "pad_token_id": "pad_id",
        "eos_token_id": "eos_id",
        "decoder_start_token_id": "start_id",
    }

    def __init__(self, **settings: Any) -> None:
        """Raises ValueError naming a setting that is impossible."""
        ours = {
            field.name: settings.pop(field.name)
            for field in fields(LocostConfig)
            if field.name in settings
        }
        super().__init__(**{"is_encoder_decoder": True, **settings, **asdict(LocostConfig(**ours))})

    def settings(self) -> LocostConfig:
        """The model's own configuration. Raises ValueError naming a setting that is impossible."""
        return LocostConfig(
            **{field.name: getattr(self, field.name) for field in fields(LocostConfig)}
        )

    def to_diff_dict(self) -> dict[str, Any]:
        """What config.json holds: all our settings, those with default values too."""
        return {**super().to_diff_dict(), **asdict(self.settings())}
