"""The optimizer's parameter groups."""

from typing import Any

import torch

from pipeline.baselines.registry import Model
from pipeline.config import TrainConfig
from pipeline.model import ssm_parameter_names


def parameter_groups(model: Model, train: TrainConfig) -> list[dict[str, Any]]:
    """The embedding, the state-space kernels if any, and the rest; each trained parameter once.

    `lr_scale` multiplies the schedule. T5's optimiser moves a parameter in proportion to its size,
    AdamW by the same amount whatever its size: a rate at which an embedding drawn from N(0, 1)
    learns in a short run makes the small projections drift at random, until the encoder's states no
    longer tell which token they come from. The kernels are never decayed.
    """
    kernel = ssm_parameter_names(model)
    groups: dict[str, list[torch.nn.Parameter]] = {"embedding": [], "kernel": [], "rest": []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # fixed positions
            continue
        kind = "kernel" if name in kernel else "rest"
        groups["embedding" if parameter is model.embedding.weight else kind].append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": 0.0 if kind == "kernel" else train.weight_decay,
            "lr_scale": train.embedding_lr_scale if kind == "embedding" else 1.0,
        }
        for kind, parameters in groups.items()
        if parameters
    ]
