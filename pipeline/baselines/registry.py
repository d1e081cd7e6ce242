"""LOCOST or a baseline, loaded and saved through one interface."""

from pathlib import Path
from typing import TypeAlias

from pipeline.baselines.model import (
    WEIGHT_FILES,
    Baseline,
    check_baseline,
    load_baseline,
    save_baseline,
)
from pipeline.baselines.systems import BaselineConfig, Name, name_of
from pipeline.model import Locost, LocostConfig, folder

Model: TypeAlias = Locost | Baseline
ModelConfig: TypeAlias = LocostConfig | BaselineConfig


def load_model(path: str | Path) -> Model:
    """The model of a folder, on the CPU, in evaluation mode.

    Raises ValueError if the folder holds no valid model.
    """
    return load_baseline(path) if baseline_of(path) else folder.load_model(path)


def check_model(path: str | Path) -> ModelConfig:
    """The configuration of a model folder, without reading its weights.

    Raises ValueError as `load_model` does.
    """
    return check_baseline(path) if baseline_of(path) else folder.check_model(path)


def save_model(model: Model, path: str | Path, tokenizer: str | Path | None = None) -> None:
    """Write a model and its tokenizer file into a folder, config.json last."""
    if isinstance(model, Baseline):
        save_baseline(model, path, tokenizer)
    else:
        folder.save_model(model, path, tokenizer)


def weights_file(path: Path) -> Path:
    """The weights file of a folder; if there is none, the expected one."""
    files = [path / name for name in (WEIGHT_FILES if baseline_of(path) else WEIGHT_FILES[:1])]
    return next((file for file in files if file.is_file()), files[0])


def baseline_of(path: str | Path) -> Name | None:
    """The baseline in a folder; None for LOCOST, or if there is no model."""
    try:
        return name_of(folder.read_settings(Path(path) / folder.CONFIG))
    except (OSError, ValueError):
        return None
