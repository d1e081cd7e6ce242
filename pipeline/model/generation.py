"""Decoding: greedy, nucleus sampling, or beam search.

Shapes: B documents, K beams, R = B K rows (document * K + beam), V vocabulary, T tokens so far.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .decoder import DecoderState
from .decoding_steps import Generator, Steps
from .layers import at_least_fp32
from .sampling import Nucleus, document_draws
from .sequence import own_part
from .static_decoding import choose_steps

EarlyStopping: TypeAlias = bool | Literal["never"]
BEAM_FIELDS = ("length_penalty", "early_stopping")
SHORT_ROW = 1024
"""Scores of a row that are sorted whole."""
SAMPLING_FIELDS = ("temperature", "seed")


@dataclass(frozen=True, kw_only=True)
class DecodingStrategy:
    """Decoding strategy; greedy by default, as in the paper.

    Raises ValueError naming a field that would have no effect with the others.
    """

    max_new_tokens: int = 512
    """Maximum tokens of a result, the end token included."""
    min_new_tokens: int = 0
    """The end token is forbidden among the first N tokens."""
    num_beams: int = 1
    """Beams per document; 1: no beam search."""
    length_penalty: float = 1.0
    """Beam search returns the largest sum of log-probabilities / length ** length_penalty, the
    length in new tokens with the end token: 0 is the likeliest text, more favours longer ones."""
    early_stopping: EarlyStopping = True
    """When the beam search of a document ends, as in transformers. True: with num_beams results.
    False: when the best running beam, ended now, would not be among them. "never": when it could
    not at any length."""
    top_p: float | None = None
    """Sample from the smallest set of likeliest tokens with this total probability (1.0: all);
    None: no sampling."""
    temperature: float = 1.0
    """Divisor of the logits before sampling."""
    no_repeat_ngram_size: int = 0
    """No sequence of N tokens occurs twice in a result; 0: off."""
    seed: int = 0
    """Seed of sampling; a result depends on it and on its source, not on the batch."""
    memory_budget: int | None = None
    """Maximum bytes of the cross-attention's keys and values; beyond it the decoder attends to the
    encoder states themselves, equal to rounding. None: see `Decoder.start`."""

    def __post_init__(self) -> None:
        fits = type(self.early_stopping) is bool or self.early_stopping == "never"
        self._require("early_stopping", fits, "give true, false or never")
        for field in (field for field in fields(self) if field.name != "early_stopping"):
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
        self._require("length_penalty", -10 <= self.length_penalty <= 10, "give -10 to 10")
        fits = self.top_p is None or 0 < self.top_p <= 1
        self._require("top_p", fits, "give a probability above 0, at most 1")
        self._require("temperature", 0 < self.temperature < math.inf, "give a positive number")
        self._require("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "give 0 or more")
        self._require("seed", 0 <= self.seed < 2**63, "give 0 to 2**63 - 1")
        fits = self.memory_budget is None or self.memory_budget >= 0
        self._require("memory_budget", fits, "give 0 bytes or more")

        fits = self.top_p is None or self.num_beams == 1
        self._require("top_p", fits, "sampling has no beams: leave it out, or set num_beams to 1")
        for name in BEAM_FIELDS:
            fits = self.num_beams > 1 or getattr(self, name) == getattr(type(self), name)
            self._require(name, fits, "only beam search reads it: set num_beams")
        for name in SAMPLING_FIELDS:
            fits = self.top_p is not None or getattr(self, name) == getattr(type(self), name)
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
    model: Generator,
    input_ids: Tensor,
    mask: Tensor | None,
    strategy: DecodingStrategy,
    started: Callable[[DecoderState], None] | None = None,
) -> Tensor:
    """Source ids (B, L), their mask (B, L) or None -> ids (B, 1 + T), see `Locost.generate`.

    A collective of the processes that share the source: all give the whole ids, and all get the
    same.
    """
    if strategy.no_repeat_ngram_size and strategy.min_new_tokens >= model.config.vocab_size:
        raise ValueError(
            f"min_new_tokens={strategy.min_new_tokens}: without repeats the vocabulary of "
            f"{model.config.vocab_size} may not suffice; give less, or no_repeat_ngram_size=0"
        )
    part, part_mask = own_part(input_ids, mask, model.decoder.sequence)
    # The encoder states get no name here: where the decoder keeps only their keys and values, they
    # are freed before the first step.
    state = model.decoder.start(
        model.encode(part, part_mask),
        part_mask,
        strategy.max_new_tokens,
        beams=strategy.num_beams,
        memory_budget=strategy.memory_budget,
    )
    if started is not None:
        started(state)
    rows = len(input_ids) * strategy.num_beams
    ids = torch.full((rows, 1), model.config.start_id, device=input_ids.device)
    steps = choose_steps(model, state, ids, strategy.max_new_tokens)
    if strategy.num_beams > 1:
        return beam_search(model, steps, ids, strategy)
    return token_by_token(model, steps, ids, strategy, nucleus(strategy, input_ids, mask))


def nucleus(strategy: DecodingStrategy, input_ids: Tensor, mask: Tensor | None) -> Nucleus | None:
    """The strategy's sampling of sources (B, L) with a mask (B, L) or None; None: no sampling."""
    if strategy.top_p is None:
        return None
    draws = document_draws(strategy.seed, input_ids, mask, strategy.max_new_tokens)
    return Nucleus(strategy.top_p, strategy.temperature, draws.to(input_ids.device))


def token_by_token(
    model: Generator,
    steps: Steps,
    ids: Tensor,
    strategy: DecodingStrategy,
    sampling: Nucleus | None,
) -> Tensor:
    """Greedy decoding or sampling of each row (B, 1), until it ends."""
    eos_id, pad_id = model.config.eos_id, model.config.pad_id
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for step in range(strategy.max_new_tokens):
        logits = restrict(steps.logits(ids[:, -1:]), ids[:, 1:], strategy, eos_id)
        chosen = logits.argmax(-1) if sampling is None else sampling(logits, step)
        chosen = agreed(model, chosen).masked_fill(ended, pad_id)
        ids = torch.cat([ids, chosen[:, None]], dim=1)
        ended |= chosen == eos_id
        if (step + 1) % steps.patience == 0 and ended.all():
            break
    return through_last_end(ids, eos_id)


def agreed(model: Generator, choice: Tensor) -> Tensor:
    """The choice of the first of the processes that share the sources, on all of them.

    Where hardware differs, the others may have rounded the logits otherwise.
    """
    group = model.decoder.sequence
    return choice if group.size == 1 else group.stack(choice)[0]


def through_last_end(ids: Tensor, eos_id: int) -> Tensor:
    """Ids (R, 1 + T) without the columns of padding after the end of the longest row."""
    ends = ids[:, 1:] == eos_id  # at most one a row
    unended = ends.shape[1]
    longest = torch.where(ends.any(1), 1 + ends.long().argmax(1), unended).max()
    return ids[:, : 1 + int(longest)]


def beam_search(model: Generator, steps: Steps, ids: Tensor, strategy: DecodingStrategy) -> Tensor:
    """The best sequence found for each document, its K beams (B K, 1) -> (B, 1 + T).

    As in transformers 5: of all continuations of a document's beams the 2 K likeliest are
    candidates. Those that end, among the first K, are results; the K likeliest of the others run
    on. The score is the sum of the model's log-probabilities (not renormalised if tokens are
    forbidden) over length ** length_penalty. At max_new_tokens the first K candidates are results
    even if they do not end. Of equal candidates the lower beam, then the lower id, comes first; of
    equal results the shorter.
    """
    beams, eos_id, longest = strategy.num_beams, model.config.eos_id, strategy.max_new_tokens
    first_row = torch.arange(0, len(ids), beams, device=ids.device)[:, None]
    results = BeamResults(model, ids, strategy)
    running = torch.full_like(results.scores, -torch.inf)
    running[:, 0] = 0  # all beams start equal: one is enough
    for length in range(1, 1 + longest):
        logs = steps.logits(ids[:, -1:]).log_softmax(-1)
        logs = restrict(logs, ids[:, 1:], strategy, eos_id)
        totals = running[..., None] + logs.unflatten(0, (-1, beams))
        totals, index = largest(totals.flatten(1), 2 * beams)
        totals, index = agreed(model, totals), agreed(model, index)
        rows, tokens = first_row + index // logs.shape[-1], index % logs.shape[-1]
        ended = (tokens == eos_id) | (length == longest)
        candidates = torch.cat([ids[rows], tokens[..., None]], dim=-1)  # (B, 2 K, 1 + length)
        results.offer(totals.masked_fill(~ended, -torch.inf)[:, :beams], candidates[:, :beams])

        running, order = largest(totals.masked_fill(ended, -torch.inf), beams)
        results.finish(running, length)
        if length % steps.patience == 0 and results.final.all():
            break
        steps.select(rows.gather(1, order).flatten())
        ids = candidates.gather(1, order[..., None].expand(-1, -1, 1 + length)).flatten(0, 1)
    return results.ids[:, : 1 + int(results.length.max())]


class BeamResults:
    """The K best results of each document so far, of which the best is kept whole."""

    def __init__(self, model: Generator, ids: Tensor, strategy: DecodingStrategy) -> None:
        self.strategy = strategy
        documents = len(ids) // strategy.num_beams
        self.ids = ids.new_full((documents, 1 + strategy.max_new_tokens), model.config.pad_id)
        """(B, 1 + max_new_tokens), the best, padded."""
        self.length = ids.new_zeros(documents)
        """(B,), its new tokens."""
        dtype = at_least_fp32(model.embedding.weight.dtype)
        shape = (documents, strategy.num_beams)
        self.scores = torch.full(shape, -torch.inf, dtype=dtype, device=ids.device)
        """(B, K), the best first; -inf where there is none yet."""
        self.final = torch.zeros(documents, dtype=torch.bool, device=ids.device)
        """(B,), whether a document's search has ended, alone or in this batch."""

    def offer(self, totals: Tensor, candidates: Tensor) -> None:
        """Take those of the candidates (B, K, 1 + T) that are good enough, by their sums of
        log-probabilities (B, K), the largest first, -inf for what is no result."""
        length = candidates.shape[-1] - 1
        scores = totals / length**self.strategy.length_penalty
        scores = scores.masked_fill(self.final[:, None], -torch.inf)
        score, beam = scores.max(dim=1)
        better = score > self.scores[:, 0]
        best = candidates[torch.arange(len(beam), device=beam.device), beam]
        self.length = self.length.masked_fill(better, length)
        self.ids[:, : 1 + length] = torch.where(better[:, None], best, self.ids[:, : 1 + length])
        self.scores, _ = largest(torch.cat([self.scores, scores], dim=1), totals.shape[1])

    def finish(self, running: Tensor, length: int) -> None:
        """End the searches that can, by the sums of log-probabilities (B, K) of running beams, the
        largest first, and their length; see `early_stopping`.

        More tokens never raise a sum, which is negative: a running beam's best score is that of its
        sum at this length or, where the penalty favours long texts, at the largest.
        """
        strategy = self.strategy
        worst = self.scores[:, -1]
        if strategy.early_stopping is True:
            self.final |= worst > -torch.inf
        elif strategy.early_stopping == "never" and strategy.length_penalty > 0:
            length = strategy.max_new_tokens
        self.final |= running[:, 0] / length**strategy.length_penalty <= worst


def restrict(scores: Tensor, generated: Tensor, strategy: DecodingStrategy, eos_id: int) -> Tensor:
    """Next-token scores (R, V) after the new tokens (R, T), -inf for forbidden tokens."""
    length, size = generated.shape[1], strategy.no_repeat_ngram_size
    if length < strategy.min_new_tokens:
        scores = scores.clone()
        scores[:, eos_id] = -torch.inf
    if 0 < size <= length:
        scores = scores.masked_fill(repeats(generated, size, scores.shape[1]), -torch.inf)
    return scores


def repeats(generated: Tensor, size: int, vocab_size: int) -> Tensor:
    """Which tokens (R, V) would repeat a sequence of `size` tokens of the row (R, T), T >= size."""
    ngrams = generated.unfold(1, size, 1)  # (R, T - size + 1, size)
    last = generated[:, None, generated.shape[1] - size + 1 :]
    seen = (ngrams[..., :-1] == last).all(-1)
    tokens = ngrams[..., -1].masked_fill(~seen, vocab_size)  # others go into an extra column
    found = torch.zeros(len(tokens), vocab_size + 1, dtype=torch.bool, device=tokens.device)
    return found.scatter(1, tokens, True)[:, :-1]


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row (R, N), highest first, ties by index.

    `topk` does not define the order of ties, frequent in bf16; of a vocabulary a stable sort takes
    10 times as long.
    """
    if scores.shape[1] <= SHORT_ROW:
        ordered = scores.sort(dim=1, descending=True, stable=True)
        return ordered.values[:, :count], ordered.indices[:, :count]
    rest, values, indices = scores.clone(), [], []
    for _ in range(count):
        value, index = rest.max(dim=1, keepdim=True)
        values.append(value)
        indices.append(index)
        rest.scatter_(1, index, -torch.inf)
    return torch.cat(values, dim=1), torch.cat(indices, dim=1)
