"""A small model and a batch of unequal lengths on which ways of decoding differ."""

import torch
from locost_golden import random_model

from pipeline.model import Locost

IDS = torch.randint(2, 40, (4, 13), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(13) < torch.tensor([[13], [4], [9], [1]])).long()


@torch.no_grad()
def lively_model(eos_id: int, **changes: object) -> Locost:
    """A model whose rows differ: attention counts for more than the last token."""
    model = random_model(eos_id=eos_id, tie_embeddings=False, **changes).double()
    for block in model.decoder.blocks:
        block.cross_attention.o.weight *= 6
        block.self_attention.o.weight *= 6
    return model


def without_padding(ids: torch.Tensor, eos_id: int) -> list[list[int]]:
    """The new tokens of each row (B, 1 + T), through its first end token."""
    rows = [row[1:] for row in ids.tolist()]
    return [row[: row.index(eos_id) + 1] if eos_id in row else row for row in rows]
