"""A local transformers model folder: checked and identified before anything loads it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pipeline.model.folder import read_settings
from pipeline.shards import file_sha256

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class LocalModel:
    """A model's folder, its config.json, its tensor names and the hash of its weights."""

    folder: Path
    config: dict[str, Any]
    tensors: frozenset[str]
    sha256: str

    @property
    def name(self) -> str:
        """The folder's name, for readers; the hash identifies the model."""
        return self.folder.name

    def identity(self) -> dict[str, str]:
        """The name and hash that a result records."""
        return {"model": self.name, "weights_sha256": self.sha256}


def local_model(folder: Path) -> LocalModel:
    """Inspect a model folder; ValueError unless it has config.json and model.safetensors."""
    folder = folder.resolve()
    for name in ("config.json", WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder} is not a model folder: no {name}; give one written by transformers' "
                "save_pretrained (nothing is downloaded, and .bin weights are not read)"
            )
    config = read_settings(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ValueError(f"{folder}/config.json names no model_type of transformers")
    try:
        with safe_open(folder / WEIGHTS, framework="numpy") as file:
            tensors = frozenset(file.keys())
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged: {error}") from None
    return LocalModel(folder, config, tensors, file_sha256(folder / WEIGHTS))
