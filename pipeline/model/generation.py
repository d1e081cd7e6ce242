"""Decoding strategies over the decoder's step-by-step state."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .locost import Locost


def greedy(
    model: "Locost", states: Tensor, mask: Tensor | None, max_new_tokens: int, min_new_tokens: int
) -> Tensor:
    """The most likely token at each step, from encoder states (B, L, H) -> ids (B, T')."""
    config = model.config
    rows = states.shape[0]
    ids = torch.full((rows, 1 + max_new_tokens), config.pad_id, device=states.device)
    ids[:, 0] = config.start_id
    ended = torch.zeros(rows, dtype=torch.bool, device=states.device)
    state = model.decoder.start(states, mask, max_new_tokens)
    for position in range(1, 1 + max_new_tokens):
        embedded = model.embedding(ids[:, position - 1 : position])
        logits = model.project(model.decoder.step(embedded, state)[:, -1])
        if position <= min_new_tokens:
            logits[:, config.eos_id] = -torch.inf
        chosen = logits.argmax(-1).masked_fill(ended, config.pad_id)
        ids[:, position] = chosen
        ended |= chosen == config.eos_id
        if ended.all():
            return ids[:, : position + 1]
    return ids
