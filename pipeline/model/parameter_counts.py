"""Numbers of parameters of a model, by kind."""

from dataclasses import dataclass

import torch
from torch import nn

from .config import LocostConfig
from .locost import Locost

FP32 = 4
"""Bytes of an element."""


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters."""

    total: int
    encoder: int
    embedding: int
    products: int
    """Those of matrix products, of which autocast keeps a bf16 copy during a micro-batch."""

    @classmethod
    def of(cls, config: LocostConfig) -> "ParameterCounts":
        """Counted on the model itself, on the meta device."""
        with torch.device("meta"):
            model = Locost(config)
        linear = (part for part in model.modules() if isinstance(part, nn.Linear))
        embedding = model.embedding.weight.numel()
        return cls(
            _count(model),
            _count(model.encoder),
            embedding,
            sum(part.weight.numel() for part in linear) + (embedding if model.head is None else 0),
        )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
