"""A model folder of transformers on this machine: checked and named before anything loads it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pipeline.shards import file_sha256

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class LocalModel:
    """Its folder, its config.json, the names of its tensors and what tells it from others."""

    folder: Path
    config: dict[str, Any]
    tensors: frozenset[str]
    sha256: str

    @property
    def name(self) -> str:
        """The folder's name, for readers; the hash is what identifies it."""
        return self.folder.name

    def identity(self) -> dict[str, str]:
        """What a result says of it."""
        return {"model": self.name, "weights_sha256": self.sha256}


def local_model(folder: Path) -> LocalModel:
    """Look at a model folder. Raises ValueError unless it has config.json and model.safetensors."""
    folder = folder.resolve()
    for name in ("config.json", WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder} is not a model folder: no {name}; give a folder that transformers' "
                "save_pretrained wrote (nothing is downloaded, and .bin weights are not read)"
            )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["model_type"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{folder}/config.json names no model_type of transformers") from None
    try:
        with safe_open(folder / WEIGHTS, framework="numpy") as file:
            tensors = frozenset(file.keys())
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged: {error}") from None
    return LocalModel(folder, config, tensors, file_sha256(folder / WEIGHTS))
