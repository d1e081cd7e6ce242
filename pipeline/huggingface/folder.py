"""The files of a folder for transformers, other than the weights."""

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.model import Locost, LocostConfig
from pipeline.model.folder import build_model
from pipeline.tokenizer import SENTINELS

HERE = Path(__file__).resolve().parent
CODE = (HERE, HERE.parent / "model")
"""Sources of the folder's modules, which are copied unchanged into one flat folder."""
PREFIX = "locost."
"""The wrapper's attribute that holds the model: the prefix of every weight's name."""
MODEL_TYPE = "locost"
MAX_NEW_TOKENS = 512  # as Locost.generate; the library's default is 20


def code_files() -> dict[str, bytes]:
    """The wrapper's modules and all that they import from here, recursively, by file name."""
    found: dict[str, bytes] = {}
    wanted = ["modeling_locost"]
    while wanted:
        name = f"{wanted.pop()}.py"
        if name not in found:
            path = next(folder / name for folder in CODE if (folder / name).is_file())
            found[name] = path.read_bytes()
            wanted += re.findall(r"^\s*from \.(\w+) import", found[name].decode(), re.M)
    return dict(sorted(found.items()))


def config_files(config: LocostConfig) -> dict[str, dict[str, Any]]:
    """config.json with all our settings, and the defaults of `generate`."""
    return {
        "generation_config.json": {
            "pad_token_id": config.pad_id,
            "eos_token_id": config.eos_id,
            "decoder_start_token_id": config.start_id,
            "max_new_tokens": MAX_NEW_TOKENS,
        },
        "config.json": {
            "model_type": MODEL_TYPE,
            "architectures": ["LocostForConditionalGeneration"],
            "auto_map": {
                "AutoConfig": "configuration_locost.LocostPretrainedConfig",
                "AutoModelForSeq2SeqLM": "modeling_locost.LocostForConditionalGeneration",
            },
            "is_encoder_decoder": True,
            **asdict(config),
        },
    }


def model_of(settings: Mapping[str, Any], weights: Mapping[str, Tensor], origin: str) -> Locost:
    """The model that transformers saved, from its config.json and its weights.

    Raises ValueError naming settings and weights that are missing or do not fit.
    """
    names = [field.name for field in fields(LocostConfig)]
    if missing := [name for name in names if name not in settings]:
        raise ValueError(
            f"{origin}: its config.json lacks {', '.join(missing)}; add them from the config.json "
            "of the folder that training started from"
        )
    try:
        config = LocostConfig(**{name: settings[name] for name in names})
    except ValueError as error:
        raise ValueError(f"{origin}: its config.json: {error}") from None
    ours = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    return build_model(config, ours, origin)


TOKENIZER_CONFIG: dict[str, Any] = {
    "tokenizer_class": "T5Tokenizer",
    "extra_ids": SENTINELS,
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "model_max_length": 10**9,
}
"""Makes transformers read the SentencePiece model as T5's, with the same ids and sentinels."""
