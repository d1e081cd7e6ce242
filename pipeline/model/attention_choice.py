"""The choice of the decoder's attention backend: a test of each, then a trial of their times.

Shapes: B rows, T target and S attended positions, A heads, K channels per head.
"""

from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from .attention import Attention, attend
from .attention_backends import (
    PACKED,
    Backend,
    equal_bounds,
    flash_obstacle,
    remove_padding,
    varlen_obstacle,
)
from .choosing import TRIAL_RUNS, Candidates, choose, elapsed, relative_error, type_name, within
from .config import LocostConfig
from .cross_attention import whole_source

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Largest error of a backend by type, relative to the largest reference value."""
TRIAL_SHAPES = ((8, 64, 450), (8, 128, 1800), (4, 512, 4000))
"""Rows, targets and padded sources of a trial's passes: short to long documents."""


def choose_backend(
    name: str, device: torch.device, dtype: torch.dtype, config: LocostConfig
) -> tuple[Backend, str]:
    """The backend for attention in `dtype` on the device, tested there, and why, in one line.

    `name` is auto or a backend's; see `choose`. `config`: the sizes of attention, and the dropout
    that it trains with.
    """
    return choose(
        name,
        Candidates[Backend](
            what="attention",
            option="--train.attention",
            names=list(BACKENDS),
            reference="sdpa",
            test=partial(tested, device=device, dtype=dtype, head_dim=config.head_dim),
            trial=partial(trial, device=device, dtype=dtype, config=config),
            obstacles=obstacles(device, dtype, config.dropout),
            where=f" in {type_name(dtype)} on {device}",
        ),
    )


def obstacles(device: torch.device, dtype: torch.dtype, dropout: float) -> dict[Backend, str]:
    """Why backends cannot run here, by backend; those that can are left out."""
    found: dict[Backend, str | None] = {
        "varlen": varlen_obstacle(device, dtype, dropout),
        "flash": flash_obstacle(device, dtype),
    }
    return {backend: reason for backend, reason in found.items() if reason}


def trial(
    backend: Backend, device: torch.device, dtype: torch.dtype, config: LocostConfig
) -> float:
    """Milliseconds of cross-attention over masked sources of TRIAL_SHAPES, forward and backward.

    The median of TRIAL_RUNS, after one that loads the kernels. Each run has lengths that no
    earlier one had: a library that prepares a plan for every shape does so here as in training,
    where most batches have a new shape. A source is read by as many layers as in the decoder.
    """
    fork = torch.random.fork_rng([device] if device.type == "cuda" else [])
    exact = torch.autocast(device.type, enabled=False)
    with fork, exact, torch.enable_grad():
        attention = Attention(config).to(device, dtype)
        times = []
        for run in range(1 + TRIAL_RUNS):
            passes = [
                trial_pass(backend, attention, config, (rows, targets + run, sources + run))
                for rows, targets, sources in TRIAL_SHAPES
            ]
            times.append(elapsed(passes, device))
    return median(times[1:])


def trial_pass(
    backend: Backend, attention: Attention, config: LocostConfig, shape: tuple[int, int, int]
) -> Callable[[], None]:
    """A pass of random targets over a random source, to be timed: B rows, T targets, S sources.

    The rows' sources have from S / B to S real positions.
    """
    rows, targets, sources = shape
    like = attention.q.weight
    x, states = (
        like.new_empty(rows, length, config.d_model).normal_().requires_grad_()
        for length in (targets, sources)
    )
    ends = torch.arange(1, rows + 1, device=like.device) * sources // rows
    mask = torch.arange(sources, device=like.device) < ends[:, None]

    def run() -> None:
        source = whole_source(states, mask, backend)
        mixed = torch.stack([source.attend(attention, x) for _ in range(config.decoder_layers)])
        mixed.backward(mixed.detach())

    return run


def tested(backend: Backend, device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """The error of `self_test`; raises ValueError if it is too large."""
    return within(self_test(backend, device, dtype, head_dim), TOLERANCES[dtype])


def self_test(backend: Backend, device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """The backend's largest error relative to float64, of results and gradients.

    Tested: rows of unequal length with few targets, and causal attention of equal lengths.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    padded = torch.arange(70) < torch.tensor([[70], [1], [33]])
    errors = []
    for mask, length in ((padded.to(device), 5), (None, 70)):
        inputs = [random(3, 2, size, head_dim) for size in (length, 70, 70)]
        inputs[0] *= 2 / head_dim**0.5  # scores of a standard deviation of 2
        direction = random(3, 2, length, head_dim)
        ours = with_gradients(BACKENDS[backend], inputs, mask, direction)
        wide = [x.double() for x in inputs]
        exact = with_gradients(plain_attend, wide, mask, direction.double())
        errors.append(relative_error(ours, exact))
    return max(errors)


AttendMasked = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Attention of (B, A, T, K) over (B, A, S, K) with a mask (B, S), causal without one."""


def with_gradients(
    function: AttendMasked, inputs: list[Tensor], mask: Tensor | None, direction: Tensor
) -> list[Tensor]:
    """The result of attention, and the gradients of its product with `direction`."""
    with torch.enable_grad(), torch.autocast(direction.device.type, enabled=False):
        queries, keys, values = (x.detach().requires_grad_() for x in inputs)
        result = function(queries, keys, values, mask)
        return [result, *torch.autograd.grad(result, (queries, keys, values), direction)]


def plain_attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention written out."""
    scores = queries @ keys.transpose(-1, -2)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    allowed = allowed.tril() if mask is None else allowed & mask[:, None, None]
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ values


def sdpa_masked(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention by torch, called as the decoder calls it."""
    spread = None if mask is None else mask[:, None, None]
    return attend(queries, keys, values, spread, causal=mask is None)


def packed_masked(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, backend: Backend
) -> Tensor:
    """Attention without padding, called as the decoder calls it."""
    rows, _, length, _ = queries.shape
    packed = queries.transpose(1, 2).flatten(0, 1)
    bounds = equal_bounds(rows, length, queries.device)
    real_keys, key_bounds = remove_padding(keys.transpose(1, 2), mask)
    real_values, _ = remove_padding(values.transpose(1, 2), mask)
    function, causal = PACKED[backend], mask is None
    context = function(packed, real_keys, real_values, bounds, key_bounds, causal=causal)
    return context.unflatten(0, (rows, length)).transpose(1, 2)


BACKENDS: dict[Backend, AttendMasked] = {
    "varlen": partial(packed_masked, backend="varlen"),
    "flash": partial(packed_masked, backend="flash"),
    "sdpa": sdpa_masked,
}
