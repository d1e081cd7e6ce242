"""Cross-attention of baselines that starts by copying, as LOCOST's may (docs/learning.md)."""

import torch
from torch import nn

from pipeline.baselines.model import Baseline

PROJECTIONS = {
    "EncDecAttention": ("q", "k", "v", "o"),  # T5, LongT5
    "encoder_attn": ("q_proj", "k_proj", "v_proj", "out_proj"),  # BART and its kin
}


@torch.no_grad()
def initialise_to_copy(model: Baseline) -> None:
    """As `Attention.initialise_to_copy`, in every cross-attention of the decoder.

    W_q = W_k, W_v with orthonormal rows or columns, W_o = W_v^T; biases are 0.
    Raises ValueError for a decoder without such layers.
    """
    layers = [
        [getattr(module, name) for name in PROJECTIONS[kind]]
        for path, module in model.network.get_decoder().named_modules()
        if (kind := path.rpartition(".")[2]) in PROJECTIONS
    ]
    if not layers:
        raise ValueError(
            f"model.cross_attention_initialisation copy is not known for {model.config.name}; "
            "leave it out"
        )
    for q, k, v, o in layers:
        q.weight.copy_(k.weight)
        nn.init.orthogonal_(v.weight)
        o.weight.copy_(v.weight.t())
        for layer in (q, k, v, o):
            if layer.bias is not None:
                layer.bias.zero_()
