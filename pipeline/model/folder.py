"""A model folder: config.json, model.safetensors, tokenizer.model."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from .config import INITIALISATION, LARGEST, LocostConfig
from .layers import at_least_fp32
from .locost import Locost

ARCHITECTURE = "locost"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.model"
FORMAT = {"format": "pt"}
"""Metadata of weights files, expected by other readers of safetensors."""
FLOATING = ("F", "BF")
"""Beginnings of safetensors' names of floating-point types."""
MOST_LAYERS = 1000
"""Of an encoder or a decoder; the published ones have at most 96."""
SIZES = (
    "vocab_size", "d_model", "state_dim", "d_ff", "num_heads", "head_dim", "relative_buckets",
    "encoder_layers", "decoder_layers",
)  # fmt: skip

Shapes = dict[str, tuple[int, ...]]


def save_model(model: Locost, folder: str | Path, tokenizer: str | Path | None = None) -> None:
    """Write the model and a copy of its tokenizer file into a folder, config.json last.

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
    """The model of a folder written by `save_model`, on the CPU, in evaluation mode.

    Raises ValueError if the folder, a file, a key or a shape is not that of a LOCOST model.
    """
    config = check_model(folder)
    path = Path(folder) / WEIGHTS
    return build_model(config, load_file(path), str(path)).eval()


def check_model(folder: str | Path) -> LocostConfig:
    """The configuration of a model folder; of the weights only names and shapes are read.

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
        shapes, others = read_header(folder / WEIGHTS)
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS}: not a safetensors file ({error})") from error
    _empty_model(config, shapes, others, str(folder / WEIGHTS))
    return config


def read_header(path: Path) -> tuple[Shapes, list[str]]:
    """Of a safetensors file: all shapes by name, and the names that are not of floating point."""
    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
        types = {name: one.get_dtype() for name, one in slices.items()}
    return shapes, [name for name, kind in types.items() if not kind.startswith(FLOATING)]


def build_model(config: LocostConfig, weights: dict[str, Tensor], origin: str) -> Locost:
    """A model with the given weights, each used once, in at least float32.

    Raises ValueError naming missing and surplus keys, wrong shapes and types, and weights that are
    not finite.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    others = [name for name, tensor in weights.items() if not tensor.is_floating_point()]
    model = _empty_model(config, shapes, others, origin)
    if broken := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{origin}: NaN or infinity in {', '.join(broken[:8])}")
    # Copies: the alignment of memory-mapped weights can change the last bits of a product.
    wide = {
        name: tensor.to(at_least_fp32(tensor.dtype), copy=True) for name, tensor in weights.items()
    }
    model.load_state_dict(wide, assign=True)
    return model


def _empty_model(
    config: LocostConfig, shapes: Shapes, others: Sequence[str], origin: str
) -> Locost:
    """A model on the meta device whose weights have these names and shapes.

    `others`: weights that are not of floating point. Raises ValueError where anything does not fit.
    """
    if others:
        raise ValueError(f"{origin}: not floating point: {', '.join(others[:8])}")
    check_sizes(config, shapes, origin)
    with torch.device("meta"):
        model = Locost(config)
    check_shapes(model, shapes, origin)
    return model


def check_sizes(config: LocostConfig, shapes: Shapes, origin: str) -> None:
    """Raise ValueError for a size that exceeds all weights, before a model is built with it."""
    elements = sum(map(prod, shapes.values()))
    for name in SIZES:
        if (size := getattr(config, name)) > elements:
            raise ValueError(
                f"{origin}: not the weights of this configuration: {name}={size}, and the "
                f"{len(shapes)} tensors have {elements} elements"
            )


def check_shapes(model: Locost, given: Shapes, origin: str) -> None:
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


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object in the config.json of any model.

    Raises ValueError on anything else, and for a number that no model has, before a million layers
    are built of it.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the latter for deep nesting
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not a JSON object")
    for name, value in values.items():
        most = MOST_LAYERS if name.endswith("layers") else LARGEST
        if isinstance(value, int | float) and not -LARGEST <= value <= most:
            raise ValueError(f"{path}: {name}={str(value)[:60]} is impossible: give at most {most}")
    return values


def _read_config(path: Path) -> LocostConfig:
    values = read_settings(path)
    architecture = values.pop("architecture", None)
    if architecture != ARCHITECTURE:
        remedy = "turn a published checkpoint into a model folder with `pipeline/convert.py import`"
        if "auto_map" in values:
            remedy = "a folder exported for transformers: give the model folder it was made from"
        raise ValueError(f"{path}: architecture {architecture!r}, not {ARCHITECTURE!r}; {remedy}")
    names = {field.name for field in fields(LocostConfig)}
    missing = names - INITIALISATION - values.keys()  # earlier folders lack some of these
    for kind, found in (("missing", missing), ("unknown", values.keys() - names)):
        if found:
            raise ValueError(f"{path}: {kind} settings: {', '.join(sorted(found))}")
    try:
        return LocostConfig(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write under a temporary name in the same folder, flush to disk, then rename.

    The file gets default permissions; safetensors alone would make it private.
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
