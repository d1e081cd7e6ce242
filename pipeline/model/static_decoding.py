"""Decoding steps of fixed shapes on fixed buffers, which a GPU replays as one CUDA graph.

A step of the base model launches about a thousand kernels, each shorter than its launch. The graph
holds the decoder and the head; the choice of tokens stays outside, and waits for nothing but a look
every few steps at whether all rows have ended.

Shapes: R rows (beams of documents), H = d_model, V vocabulary.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Literal, TypeAlias, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .decoder import DecoderState
from .decoding_steps import Generator, PlainSteps, Steps
from .layers import at_least_fp32, product_type
from .self_attention import FixedPast, Past, Position

Mode = Literal["auto", "plain", "fixed", "graph"]
mode: Mode = "auto"
"""For tests and measurements. auto: a graph on a GPU, else plain steps; fixed: fixed steps without
a graph; graph: a graph wherever this is."""

PATIENCE = 8
WARM_UPS = 2
"""Steps before a capture: libraries allocate and choose their kernels in the first."""
SHORTEST = 16
"""Fewest positions for which a graph is made: that takes about five steps, comparison included."""
CHECKED = 2
"""Positions at which a graph is compared with plain steps; the second attends the first."""
TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 5e-2,
}
"""Largest difference of the logits by the type of products, relative to the largest logit."""

_unfit: WeakSet[nn.Module] = WeakSet()
"""Models whose graph failed: said once, not tried again."""

Run: TypeAlias = Callable[[], Tensor]
"""One step from and to fixed buffers."""
Prepare: TypeAlias = Callable[[Run, torch.device], Run]
"""What makes a replay of a step on a device."""


@contextmanager
def decoding_mode(chosen: Mode) -> Iterator[None]:
    """Decode in one `mode` inside."""
    global mode
    before, mode = mode, chosen
    try:
        yield
    finally:
        mode = before


def gave_up(model: nn.Module) -> bool:
    """Whether a graph of the model failed, so that it decodes by plain steps."""
    return model in _unfit


def choose_steps(model: Generator, state: DecoderState, start: Tensor, longest: int) -> Steps:
    """The steps of at most `longest` positions from the state; start tokens (R, 1).

    A graph that cannot be captured, or differs from plain steps, is reported in a line on stderr
    and not used; nor is one, or fixed steps, where processes share the source and communicate in
    each step. Raises as `Steps.logits` does.
    """
    if model.decoder.sequence.size > 1:
        return PlainSteps(model, state)
    graph = mode == "graph" or (mode == "auto" and start.is_cuda and longest >= SHORTEST)
    if mode != "fixed" and (not graph or model in _unfit):
        return PlainSteps(model, state)
    with without_weight_cache(start.device):
        expected = first_logits(PlainSteps(model, state), start)
    if mode == "fixed":
        return checked_steps(model, state, start, expected, without_graph)
    try:
        return checked_steps(model, state, start, expected, Graph)
    except Exception as problem:  # whatever it is, plain steps still work
        reason = str(problem).strip().partition("\n")[0] or type(problem).__name__
        print(f"decoding step by step, without a CUDA graph: {reason}", file=sys.stderr)
        _unfit.add(cast(nn.Module, model))
    state.restart()
    return PlainSteps(model, state)


def first_logits(steps: Steps, start: Tensor) -> Tensor:
    """The logits (CHECKED, R, V) of start tokens (R, 1) and nothing else."""
    return torch.stack([steps.logits(start).clone() for _ in range(CHECKED)])


def checked_steps(
    model: Generator, state: DecoderState, start: Tensor, expected: Tensor, prepare: Prepare
) -> "FixedSteps":
    """Steps whose first logits are the expected ones, but for rounding; else RuntimeError."""
    steps = FixedSteps(model, state, start, prepare)
    ours, tolerance = first_logits(steps, start), TOLERANCES[product_type(model.embedding.weight)]
    error, scale = torch.stack([(ours - expected).abs().max(), expected.abs().max()]).tolist()
    if not error <= tolerance * scale:
        raise RuntimeError(
            f"its logits differ by {error:.1e}, more than {tolerance:.0e} of the largest "
            f"({scale:.1e})"
        )
    steps.restart()
    return steps


class FixedSteps:
    """Steps of the same operations on the same buffers at every position.

    The state's buffers are taken over: the state may be used again once it is restarted.
    """

    patience = PATIENCE

    def __init__(
        self, model: Generator, state: DecoderState, start: Tensor, prepare: Prepare
    ) -> None:
        self.tokens = start.clone()
        self.step = FixedStep(model, state)
        self.run = prepare(self._advance, start.device)
        self.restart()

    def logits(self, tokens: Tensor) -> Tensor:
        """See `Steps`; a first position that is not finite is found by the comparison with plain
        steps."""
        self.tokens.copy_(tokens)
        logits = self.run()
        self.step.position.length += 1
        return logits

    def select(self, rows: Tensor) -> None:
        """See `Steps`."""
        self.step.state.select(rows)

    def restart(self) -> None:
        """Back to the first position."""
        self.step.position.restart()

    def _advance(self) -> Tensor:
        with without_weight_cache(self.tokens.device):
            return self.step.advance(self.tokens)


class FixedStep(nn.Module):
    """The decoder and the head at one position, with each weight rounded once.

    Autocast rounds the weights of products in every step, or keeps the rounded ones in memory that
    a replay would read after it is freed: here it finds them in its type already, and rounds all
    else as ever.
    """

    def __init__(self, model: Generator, state: DecoderState) -> None:
        super().__init__()
        self.model = model
        past = cast(Sequence[Past], state.past)
        self.position = Position(past[0])
        self.state = DecoderState(
            state.source, [FixedPast(part.held, self.position) for part in past], state.held.zero_()
        )
        self.weights = {f"model.{name}": x for name, x in rounded_weights(model).items()}

    def advance(self, tokens: Tensor) -> Tensor:
        """Tokens (R, 1) at the position -> logits (R, V), at least float32; moves it on."""
        self.position.look_up()
        embedded = self.model.embedding(tokens)  # not by the head's rounded weights
        logits = functional_call(self, self.weights, (embedded,))
        self.position.index += 1
        return logits

    def forward(self, embedded: Tensor) -> Tensor:
        """(R, 1, H) -> (R, V)."""
        logits = self.model.project(self.model.decoder.step(embedded, self.state)[:, -1])
        return logits.to(at_least_fp32(logits.dtype))


def rounded_weights(model: Generator) -> dict[str, Tensor]:
    """The weights of a step's products that autocast would round, rounded, by name.

    Not those of the cross-attention's keys and values: where a step reads them, it does so in full
    precision (`Absorbed`).
    """
    dtype = product_type(model.embedding.weight)
    weights = {
        f"decoder.{name}.weight": module.weight
        for name, module in model.decoder.named_modules()
        if isinstance(module, nn.Linear)
        and not name.endswith(("cross_attention.k", "cross_attention.v"))
    }
    if model.head is None:
        weights["embedding.weight"] = model.embedding.weight
    else:
        weights["head.weight"] = model.head.weight
    return {name: x.detach().to(dtype) for name, x in weights.items() if x.dtype != dtype}


def without_weight_cache(device: torch.device) -> torch.autocast:
    """Autocast as it is, but keeping no rounded weights."""
    enabled = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type)
    return torch.autocast(device.type, dtype, enabled, cache_enabled=False)


def without_graph(step: Run, device: torch.device) -> Run:
    """The step itself."""
    return step


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The device's only one: cuBLAS keeps a workspace for every stream that it has seen."""
    return torch.cuda.Stream(device)


class Graph:
    """A captured step; calling it replays it. Needs a GPU: run by `make gpu-check` only.

    Errors of other threads (a loader's, NCCL's) are none of the capture's.
    """

    def __init__(self, step: Run, device: torch.device) -> None:
        with torch.cuda.device(device):
            side, current = capture_stream(device), torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    step()
            current.wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=side, capture_error_mode="thread_local"):
                self.result = step()

    def __call__(self) -> Tensor:
        """The step's result, in the same memory each time."""
        self.graph.replay()
        return self.result
