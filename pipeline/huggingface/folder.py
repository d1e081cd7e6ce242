"""What a folder for transformers holds beside the weights."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.model import LocostConfig
from pipeline.tokenizer import SENTINELS

HERE = Path(__file__).resolve().parent
CODE = (HERE, HERE.parent / "model")
"""Where the folder's modules come from; it holds them side by side, and unchanged."""
PREFIX = "locost."
"""Where the wrapper holds the model: the beginning of every weight's name."""
MAX_NEW_TOKENS = 512  # as Locost.generate; the library's own default ends after 20


def code_files() -> dict[str, bytes]:
    """The wrapper's modules and all they import from here, directly or not, by file name."""
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
    """config.json, with all our settings, and the defaults of `generate`."""
    return {
        "generation_config.json": {
            "pad_token_id": config.pad_id,
            "eos_token_id": config.eos_id,
            "decoder_start_token_id": config.start_id,
            "max_new_tokens": MAX_NEW_TOKENS,
        },
        "config.json": {
            "model_type": "locost",
            "architectures": ["LocostForConditionalGeneration"],
            "auto_map": {
                "AutoConfig": "configuration_locost.LocostPretrainedConfig",
                "AutoModelForSeq2SeqLM": "modeling_locost.LocostForConditionalGeneration",
            },
            "is_encoder_decoder": True,
            **asdict(config),
        },
    }


TOKENIZER_CONFIG: dict[str, Any] = {
    "tokenizer_class": "T5Tokenizer",
    "extra_ids": SENTINELS,
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "model_max_length": 10**9,
}
"""Has the SentencePiece model beside it read as T5's: it has the same ids, sentinels included."""
