"""Numbers of the published code on a tiny model, and how far ours are from them.

`golden` holds inputs and results (`f64.*` exact to about 1e-14, the others float32); `published`
the weights under the published names, `gradients` the loss's gradients in float64, stored in
float32.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from pipeline.model import Locost, LocostConfig
from pipeline.model.published.read import import_weights, published_config

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "locost_tiny"
golden = load_file(FOLDER / "golden.safetensors")
published = load_file(FOLDER / "model.safetensors")
gradients = load_file(FOLDER / "gradients.safetensors")
settings = json.loads((FOLDER / "config.json").read_text())


def tiny_model(dtype: torch.dtype = torch.float32) -> Locost:
    """The golden model."""
    weights = {name: tensor.clone() for name, tensor in published.items()}
    return import_weights(published_config(settings), weights).to(dtype).eval()


def random_model(**changes: object) -> Locost:
    """A small model with fresh weights, in evaluation mode."""
    sizes = {"vocab_size": 40, "d_model": 16, "state_dim": 4, "d_ff": 24}
    sizes |= {"encoder_layers": 2, "decoder_layers": 2, "num_heads": 2, "head_dim": 8}
    torch.manual_seed(0)
    return Locost(LocostConfig(**{**sizes, **changes})).eval()


def error(ours: Tensor, reference: Tensor) -> float:
    """Largest difference, relative to the largest reference value."""
    difference = (ours.detach().double() - reference.detach().double()).abs().max()
    return (difference / reference.abs().max()).item()
