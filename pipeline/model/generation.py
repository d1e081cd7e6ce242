"""Choosing the tokens: greedily, by nucleus sampling, or by beam search.

Shapes: B documents, K beams, R = B K rows (document * K + beam), V vocabulary, T tokens so far.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from .decoder import DecoderState
from .layers import at_least_fp32

if TYPE_CHECKING:
    from .locost import Locost


@dataclass(frozen=True, kw_only=True)
class DecodingStrategy:
    """How tokens are chosen; the default is greedy, as in the paper.

    A field that would decide nothing beside the others is refused with a ValueError that names it.
    """

    max_new_tokens: int = 512
    """Longest result in tokens, the end token included."""
    min_new_tokens: int = 0
    """The end token is not allowed among so many first tokens."""
    num_beams: int = 1
    """Hypotheses of a document that beam search follows; 1: no search."""
    length_penalty: float = 1.0
    """Beam search returns the largest sum of log-probabilities / length ** length_penalty, the
    length in new tokens with the end token: 0 is the likeliest text, more favours longer ones."""
    top_p: float | None = None
    """Sample from the fewest likeliest tokens that together have this probability (1.0: all);
    None: nothing is drawn."""
    temperature: float = 1.0
    """What the logits are divided by before sampling."""
    no_repeat_ngram_size: int = 0
    """No sequence of so many tokens comes twice in a result; 0: no such rule."""
    seed: int = 0
    """Seed of the samples; a result depends on it and on its row in the batch."""
    memory_budget: int | None = None
    """Most bytes for the cross-attention's keys and values, beyond which the decoder attends to the
    encoder states themselves, equal but for rounding; None: see `Decoder.start`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            kinds = (int,) if type(field.default) is int else (int, float)
            value = getattr(self, field.name)
            fits = type(value) in kinds or value is field.default is None
            self._require(
                field.name, fits, "give a number" if float in kinds else "give an integer"
            )
        self._require("max_new_tokens", self.max_new_tokens >= 1, "give at least 1")
        fits = 0 <= self.min_new_tokens <= self.max_new_tokens
        remedy = f"give 0 to max_new_tokens={self.max_new_tokens}"
        self._require("min_new_tokens", fits, remedy)
        self._require("num_beams", self.num_beams >= 1, "give at least 1")
        self._require("length_penalty", 0 <= self.length_penalty <= 10, "give 0 to 10")
        fits = self.top_p is None or 0 < self.top_p <= 1
        self._require("top_p", fits, "give a probability above 0, at most 1")
        self._require("temperature", 0 < self.temperature < math.inf, "give a positive number")
        self._require("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "give 0 or more")
        self._require("seed", 0 <= self.seed < 2**63, "give 0 to 2**63 - 1")
        fits = self.memory_budget is None or self.memory_budget >= 0
        self._require("memory_budget", fits, "give 0 bytes or more")

        fits = self.top_p is None or self.num_beams == 1
        self._require("top_p", fits, "sampling has no beams: leave it out, or set num_beams to 1")
        fits = self.num_beams > 1 or self.length_penalty == 1
        self._require("length_penalty", fits, "only beams are compared by it: set num_beams")
        for name, default in (("temperature", 1), ("seed", 0)):
            fits = self.top_p is not None or getattr(self, name) == default
            self._require(name, fits, "only sampling reads it: set top_p (1.0: all tokens)")

    @property
    def method(self) -> str:
        """The name of the strategy."""
        if self.top_p is not None:
            return "sampling"
        return "beam search" if self.num_beams > 1 else "greedy"

    def _require(self, name: str, condition: bool, remedy: str) -> None:
        if not condition:
            raise ValueError(f"{name}={getattr(self, name)!r} is impossible: {remedy}")


def generate(
    model: "Locost",
    input_ids: Tensor,
    mask: Tensor | None,
    strategy: DecodingStrategy,
    started: Callable[[DecoderState], None] | None = None,
) -> Tensor:
    """Source ids (B, L), their mask (B, L) or None -> ids (B, 1 + T), see `Locost.generate`."""
    if strategy.no_repeat_ngram_size and strategy.min_new_tokens >= model.config.vocab_size:
        raise ValueError(
            f"min_new_tokens={strategy.min_new_tokens}: without repeats the vocabulary of "
            f"{model.config.vocab_size} may not suffice; give less, or no_repeat_ngram_size=0"
        )
    # The encoder states get no name here: where the decoder keeps only their keys and values, they
    # are freed before the first step.
    state = model.decoder.start(
        model.encode(input_ids, mask),
        mask,
        strategy.max_new_tokens,
        beams=strategy.num_beams,
        memory_budget=strategy.memory_budget,
    )
    if started is not None:
        started(state)
    rows = len(input_ids) * strategy.num_beams
    ids = torch.full((rows, 1), model.config.start_id, device=input_ids.device)
    method = beam_search if strategy.num_beams > 1 else token_by_token
    return method(model, state, ids, strategy)


def token_by_token(
    model: "Locost", state: DecoderState, ids: Tensor, strategy: DecodingStrategy
) -> Tensor:
    """Each row (B, 1) goes on with its likeliest token, or with a sample, until it ends."""
    eos_id, pad_id = model.config.eos_id, model.config.pad_id
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    draws = uniforms(strategy.seed, len(ids), strategy.max_new_tokens).to(ids.device)
    for step in range(strategy.max_new_tokens):
        logits = restrict(next_logits(model, state, ids), ids[:, 1:], strategy, eos_id)
        if strategy.top_p is None:
            chosen = logits.argmax(-1)
        else:
            chosen = sample(logits / strategy.temperature, strategy.top_p, draws[:, step])
        chosen = chosen.masked_fill(ended, pad_id)
        ids = torch.cat([ids, chosen[:, None]], dim=1)
        ended |= chosen == eos_id
        if ended.all():
            break
    return ids


def beam_search(
    model: "Locost", state: DecoderState, ids: Tensor, strategy: DecodingStrategy
) -> Tensor:
    """The best sequence found for each document, its K beams (B K, 1) -> (B, 1 + T).

    At each step every beam may end, which makes it a result, and the K likeliest of all
    continuations go on. The score is the sum of the model's log-probabilities (not renormalised
    where tokens are forbidden) over length ** length_penalty. What is still running at
    max_new_tokens is a result, too. The search stops when no running beam can become the best
    (`Best.is_final`). Of equal continuations the lower beam, then the lower id, comes first; of
    equal results the shorter.
    """
    beams, eos_id = strategy.num_beams, model.config.eos_id
    first_row = torch.arange(0, len(ids), beams, device=ids.device)[:, None]
    best = Best(model, ids, strategy)
    running = torch.full_like(best.score[:, None].expand(-1, beams), -torch.inf)
    running[:, 0] = 0  # all beams begin alike: one is enough
    for _ in range(strategy.max_new_tokens):
        logs = next_logits(model, state, ids).log_softmax(-1)
        logs = restrict(logs, ids[:, 1:], strategy, eos_id)
        totals = running[..., None] + logs.unflatten(0, (-1, beams))
        best.offer(totals[..., eos_id], functional.pad(ids, (0, 1), value=eos_id))

        totals[..., eos_id] = -torch.inf
        running, index = largest(totals.flatten(1), beams)
        rows = (first_row + index // totals.shape[-1]).flatten()
        state.select(rows)
        ids = torch.cat([ids[rows], (index % totals.shape[-1]).view(-1, 1)], dim=1)
        if best.is_final(running):
            break
    best.offer(running, ids)
    return best.ids[:, : 1 + int(best.length.max())]


class Best:
    """Of each document the result of the highest score so far."""

    def __init__(self, model: "Locost", ids: Tensor, strategy: DecodingStrategy) -> None:
        self.penalty, self.longest = strategy.length_penalty, strategy.max_new_tokens
        documents = len(ids) // strategy.num_beams
        self.ids = ids.new_full((documents, 1 + self.longest), model.config.pad_id)
        """(B, 1 + max_new_tokens), padded."""
        self.length = ids.new_zeros(documents)
        """(B,), in new tokens."""
        dtype = at_least_fp32(model.embedding.weight.dtype)
        self.score = torch.full((documents,), -torch.inf, dtype=dtype, device=ids.device)
        """(B,)."""

    def offer(self, totals: Tensor, ids: Tensor) -> None:
        """Results (B K, 1 + T) with their sums of log-probabilities (B, K)."""
        length = ids.shape[1] - 1
        total, beam = totals.max(dim=1)
        score = total / length**self.penalty
        better = score > self.score
        row = torch.arange(0, len(ids), totals.shape[1], device=ids.device) + beam
        self.score = torch.where(better, score, self.score)
        self.length = self.length.masked_fill(better, length)
        self.ids[:, : 1 + length] = torch.where(
            better[:, None], ids[row], self.ids[:, : 1 + length]
        )

    def is_final(self, running: Tensor) -> bool:
        """Whether no beam, of sum of log-probabilities `running` (B, K), can end with a higher
        score.

        More tokens never raise a sum, which is negative, so it can at most be divided by the
        largest length: sum / max_new_tokens ** length_penalty bounds the score, as the penalty is
        not negative.
        """
        bound = running.amax(dim=1) / self.longest**self.penalty
        return bool((self.score >= bound).all())


def next_logits(model: "Locost", state: DecoderState, ids: Tensor) -> Tensor:
    """The logits (R, V), at least float32, of what follows ids (R, 1 + T).

    Raises ValueError where those after the start token are not finite.
    """
    step = model.decoder.step(model.embedding(ids[:, -1:]), state)
    logits = model.project(step[:, -1])
    if ids.shape[1] == 1 and not logits.isfinite().all():
        raise ValueError(
            "the model gives logits that are not finite: its weights hold NaN or too large "
            "numbers; give a checkpoint of finite weights, or precision fp32"
        )
    return logits.to(at_least_fp32(logits.dtype))


def restrict(scores: Tensor, generated: Tensor, strategy: DecodingStrategy, eos_id: int) -> Tensor:
    """Scores (R, V) of what follows the new tokens (R, T), -inf where the rules forbid it."""
    length, size = generated.shape[1], strategy.no_repeat_ngram_size
    if length < strategy.min_new_tokens:
        scores = scores.clone()
        scores[:, eos_id] = -torch.inf
    if 0 < size <= length:
        scores = scores.masked_fill(repeats(generated, size, scores.shape[1]), -torch.inf)
    return scores


def repeats(generated: Tensor, size: int, vocab_size: int) -> Tensor:
    """Which tokens (R, V) would end a sequence of `size` that the row (R, T), T >= size, holds."""
    ngrams = generated.unfold(1, size, 1)  # (R, T - size + 1, size)
    last = generated[:, None, generated.shape[1] - size + 1 :]
    seen = (ngrams[..., :-1] == last).all(-1)
    tokens = ngrams[..., -1].masked_fill(~seen, vocab_size)  # others go into a column beyond
    found = torch.zeros(len(tokens), vocab_size + 1, dtype=torch.bool, device=tokens.device)
    return found.scatter(1, tokens, True)[:, :-1]


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


def uniforms(seed: int, rows: int, steps: int) -> Tensor:
    """Numbers from [0, 1), (rows, steps), each a function of the seed, its row and its step."""
    seeds = torch.randint(2**63 - 1, (rows,), generator=torch.Generator().manual_seed(seed))
    generators = [torch.Generator().manual_seed(row) for row in seeds.tolist()]
    draws = [torch.rand(steps, generator=one, dtype=torch.float64) for one in generators]
    return torch.stack(draws)


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row (R, N) from the highest, of equal ones the first.

    `topk` leaves the order of equal values open, and bf16 has many; a stable sort takes 10 times
    as long.
    """
    rest, values, indices = scores.clone(), [], []
    for _ in range(count):
        value, index = rest.max(dim=1, keepdim=True)
        values.append(value)
        indices.append(index)
        rest.scatter_(1, index, -torch.inf)
    return torch.cat(values, dim=1), torch.cat(indices, dim=1)
