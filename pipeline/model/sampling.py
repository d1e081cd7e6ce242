"""Nucleus sampling by draws that belong to a document, whatever batch it is in.

Shapes: R documents, V vocabulary, T tokens.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Nucleus:
    """Chooses the tokens of R documents by their own draws."""

    top_p: float
    temperature: float
    draws: Tensor
    """(R, T) in [0, 1): one for each document and new token."""

    def __call__(self, logits: Tensor, step: int) -> Tensor:
        """Tokens (R,), each the document's new one number `step`, from logits (R, V)."""
        draws = self.draws[:, step].to(logits.device)
        return sample(logits / self.temperature, self.top_p, draws)


def sample(logits: Tensor, top_p: float, draws: Tensor) -> Tensor:
    """Tokens (R,) drawn from softmax of logits (R, V) cut to the nucleus of probability top_p.

    The nucleus is the fewest likeliest tokens whose probabilities reach top_p (Holtzman et al.
    2020, section 3.1); a draw in [0, 1) picks from it by the inverse of its distribution function.
    """
    ordered, tokens = logits.double().sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    reached = probabilities.cumsum(-1)
    kept = (
        ((reached - probabilities < top_p) & (probabilities > 0)).sum(-1, keepdim=True).clamp(min=1)
    )
    target = draws[:, None] * reached.gather(-1, kept - 1)
    index = torch.searchsorted(reached, target, right=True).minimum(kept - 1)
    return tokens.gather(-1, index)[:, 0]


def document_draws(seed: int, input_ids: Tensor, mask: Tensor | None, steps: int) -> Tensor:
    """Uniform numbers in [0, 1), (R, steps), each a function of seed, document and step alone.

    A document is its ids, (R, L), where the mask (R, L), if any, is not 0.
    """
    kept = torch.ones_like(input_ids) if mask is None else mask
    draws = []
    for ids, real in zip(input_ids.cpu(), kept.bool().cpu(), strict=True):
        digest = hashlib.sha256(f"{seed} {ids[real].tolist()}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        draws.append(torch.rand(steps, generator=generator, dtype=torch.float64))
    return torch.stack(draws)
