"""The operators of a decoding step that a CUDA graph replays, and of those around the replay.

The steps are the fixed ones that a graph captures, run one after another on a fake card.
"""

import sys
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from pipeline.counting.fake_card import CARD, autocast, empty
from pipeline.counting.steps import Counts, count, count_into, model_on_card
from pipeline.model import LocostConfig
from pipeline.model.decoder import DecoderState
from pipeline.model.decoding_steps import Steps
from pipeline.model.generation import DecodingStrategy, beam_search, token_by_token
from pipeline.model.locost import Locost
from pipeline.model.static_decoding import PATIENCE, FixedSteps, Run

LONGEST = 512
"""Target positions of the buffers, as for a summary."""


@dataclass
class GraphStep:
    """A decoding step under a CUDA graph."""

    inside: Counts = field(default_factory=Counts)
    """What the graph holds: one launch of the host for all of it."""
    outside: Counts = field(default_factory=Counts)
    """The rest: the tokens' copy into the graph's input, the choice of tokens."""


class Marked:
    """Steps that note which one runs, from one call for logits to the next."""

    patience = PATIENCE

    def __init__(self, model: Locost, state: DecoderState, start: Tensor) -> None:
        self.number, self.in_graph = 0, False
        self.steps: Steps = FixedSteps(model, state, start, self._noting)

    def _noting(self, step: Run, device: torch.device) -> Run:
        def run() -> Tensor:
            self.in_graph = True
            try:
                return step()
            finally:
                self.in_graph = False

        return run

    def logits(self, tokens: Tensor) -> Tensor:
        """See `Steps`."""
        self.number += 1
        return self.steps.logits(tokens)

    def select(self, rows: Tensor) -> None:
        """See `Steps`."""
        self.steps.select(rows)


def graph_step(
    config: LocostConfig, batch: int, source: int, beams: int = 1, bf16: bool = True
) -> GraphStep:
    """The first step that looks at whether all rows have ended, over cached keys and values."""
    model = model_on_card(config).eval()
    ids, mask = (empty((batch, source), torch.long) for _ in range(2))
    found = GraphStep()
    made: list[Marked] = []

    def start() -> None:
        state = model.decoder.start(
            model.encode(ids, mask), mask, LONGEST, beams=beams, memory_budget=sys.maxsize
        )
        first = torch.full((batch * beams, 1), config.start_id, device=CARD)
        made.append(Marked(model, state, first))

    def chosen(steps: Marked) -> Counts | None:
        if steps.number != PATIENCE:
            return None
        return found.inside if steps.in_graph else found.outside

    def decode(steps: Marked) -> None:
        strategy = DecodingStrategy(max_new_tokens=1 + PATIENCE, num_beams=beams)
        first = torch.full((batch * beams, 1), config.start_id, device=CARD)
        if beams == 1:
            token_by_token(model, steps, first, strategy, None)
        else:
            beam_search(model, steps, first, strategy)

    with torch.no_grad(), autocast(bf16):
        count(start)
        count_into(partial(chosen, made[0]), partial(decode, made[0]))
    return found
