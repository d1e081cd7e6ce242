"""LOCOST or a baseline: what a folder or a run asks for, behind one interface."""

import json
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
    """The model of a folder, on the CPU, ready for inference.

    Raises ValueError where the folder holds no model that can be used.
    """
    return load_baseline(path) if baseline_of(path) else folder.load_model(path)


def check_model(path: str | Path) -> ModelConfig:
    """The configuration of a model folder, whose weights are not read.

    Raises ValueError as `load_model` does.
    """
    return check_baseline(path) if baseline_of(path) else folder.check_model(path)


def save_model(model: Model, path: str | Path, tokenizer: str | Path | None = None) -> None:
    """Write a model, and its tokenizer's file, into a folder, config.json last."""
    if isinstance(model, Baseline):
        save_baseline(model, path, tokenizer)
    else:
        folder.save_model(model, path, tokenizer)


def weights_file(path: Path) -> Path:
    """The file of a folder's weights; where there is none, the one that is missing."""
    files = [path / name for name in (WEIGHT_FILES if baseline_of(path) else WEIGHT_FILES[:1])]
    return next((file for file in files if file.is_file()), files[0])


def baseline_of(path: str | Path) -> Name | None:
    """The baseline that a folder holds; None: LOCOST, or nothing."""
    try:
        return name_of(json.loads((Path(path) / folder.CONFIG).read_text()))
    except (OSError, ValueError):
        return None
