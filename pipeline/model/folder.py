"""A model folder: config.json, model.safetensors, tokenizer.model."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from .config import LocostConfig
from .layers import at_least_fp32
from .locost import Locost

ARCHITECTURE = "locost"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.model"
FORMAT = {"format": "pt"}
"""Metadata of weights, by which other readers of safetensors know whose they are."""


def save_model(model: Locost, folder: str | Path, tokenizer: str | Path | None = None) -> None:
    """Write the model, and a copy of its tokenizer's file, into a folder, config.json last.

    Each file is written under a temporary name and then renamed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        replace_file(folder / TOKENIZER, lambda path: shutil.copyfile(tokenizer, path))
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    replace_file(folder / WEIGHTS, lambda path: save_file(weights, path, FORMAT))
    text = json.dumps({"architecture": ARCHITECTURE, **asdict(model.config)}, indent=2) + "\n"
    replace_file(folder / CONFIG, lambda path: path.write_text(text))


def load_model(folder: str | Path) -> Locost:
    """The model of a folder that `save_model` wrote, on the CPU, ready for inference.

    Raises ValueError where the folder, a file, a key or a shape is not a LOCOST model's.
    """
    config = check_model(folder)
    path = Path(folder) / WEIGHTS
    return build_model(config, load_file(path), str(path)).eval()


def check_model(folder: str | Path) -> LocostConfig:
    """The configuration of a model folder, whose weights are not read, only their names and shapes.

    Raises ValueError as `load_model` does.
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder}: no {name}; give a model folder, such as a checkpoint's model/"
            )
    config = _read_config(folder / CONFIG)
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            given = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS}: not a safetensors file ({error})") from error
    check_shapes(_model_without_weights(config), given, str(folder / WEIGHTS))
    return config


def build_model(config: LocostConfig, weights: dict[str, Tensor], origin: str) -> Locost:
    """A model that holds the given weights, each used once, in at least float32.

    Raises ValueError that names, in one line, missing and surplus keys, wrong shapes and weights
    that are not finite.
    """
    model = _model_without_weights(config)
    check_shapes(model, {name: tuple(tensor.shape) for name, tensor in weights.items()}, origin)
    if broken := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{origin}: NaN or infinity in {', '.join(broken[:8])}")
    # Copies: a file's map lies anywhere, and where weights lie can change a product's last bits.
    wide = {
        name: tensor.to(at_least_fp32(tensor.dtype), copy=True) for name, tensor in weights.items()
    }
    model.load_state_dict(wide, assign=True)
    return model


def _model_without_weights(config: LocostConfig) -> Locost:
    with torch.device("meta"):
        return Locost(config)


def check_shapes(model: Locost, given: dict[str, tuple[int, ...]], origin: str) -> None:
    """Raise ValueError unless the names and shapes given are those of the model's weights."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    faults = [f"missing {name}" for name in expected if name not in given]
    faults += [f"surplus {name}" for name in given if name not in expected]
    faults += [
        f"{name} is {shape}, expected {expected[name]}"
        for name, shape in given.items()
        if name in expected and shape != expected[name]
    ]
    if faults:
        shown = "; ".join(faults[:8])
        more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise ValueError(f"{origin}: not the weights of this configuration: {shown}{more}")


def _read_config(path: Path) -> LocostConfig:
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    architecture = values.pop("architecture", None) if isinstance(values, dict) else None
    if architecture != ARCHITECTURE:
        remedy = "turn a published checkpoint into a model folder with `pipeline/convert.py import`"
        if isinstance(values, dict) and "auto_map" in values:
            remedy = "a folder exported for transformers: give the model folder it was made from"
        raise ValueError(f"{path}: architecture {architecture!r}, not {ARCHITECTURE!r}; {remedy}")
    names = {field.name for field in fields(LocostConfig)}
    for kind, found in (("missing", names - values.keys()), ("unknown", values.keys() - names)):
        if found:
            raise ValueError(f"{path}: {kind} settings: {', '.join(sorted(found))}")
    try:
        return LocostConfig(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write under a temporary name in the same folder, flush to disk, then rename.

    The file is as readable as any new one; safetensors would leave it to its owner.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
