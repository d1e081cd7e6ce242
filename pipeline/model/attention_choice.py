"""The choice of the decoder's attention backend: a test of each, then a trial of their times.

Shapes: B rows, T target and S attended positions, A heads, K channels per head.
"""

import time
from collections.abc import Callable, Iterable
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
from .config import LocostConfig
from .cross_attention import whole_source

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Largest error of a backend by type, relative to the largest reference value."""
TRIAL_SHAPES = ((8, 64, 450), (8, 128, 1800), (4, 512, 4000))
"""Rows, targets and padded sources of a trial's passes: short to long documents."""
TRIAL_RUNS = 5
WORTHWHILE = 1.05
"""How many times as long as another's sdpa's trial must take for the other to be chosen."""


def choose_backend(
    name: str, device: torch.device, dtype: torch.dtype, config: LocostConfig
) -> tuple[Backend, str]:
    """The backend for attention in `dtype` on the device, tested there, and why, in one line.

    `auto` tests those without an obstacle, drops those that fail, times the rest, and takes the
    fastest if it is 5 % faster than sdpa. Times differ between processes: one must choose, and the
    others and a resumed run be given the name it chose, which is then tested but not timed.
    `config`: the sizes of attention, and the dropout that it trains with.

    Raises ValueError if a backend given by name cannot run here, or if that, or for auto sdpa,
    fails its test.
    """
    if name not in ("auto", *BACKENDS):
        raise ValueError(f"attention {name!r} is unknown: give auto, {', '.join(BACKENDS)}")
    dropped = obstacles(device, dtype, config.dropout)
    candidates = [one for one in BACKENDS if name == one or (name == "auto" and one not in dropped)]
    if reason := dropped.get(candidates[0]):
        raise ValueError(f"attention {name} is not available: {reason}; or choose sdpa or auto")
    test = partial(tested, device=device, dtype=dtype, head_dim=config.head_dim)
    duration = partial(trial, device=device, dtype=dtype, config=config)
    errors = measured(candidates, test, dropped, name)
    times = measured(errors, duration, dropped, name) if len(errors) > 1 else {}
    backend = fastest(times) if name == "auto" else candidates[0]
    facts = [f"relative error {errors[backend]:.1e} in {type_name(dtype)} on {device}"]
    if times:
        facts.append("trial: " + ", ".join(f"{one} {times[one]:.1f} ms" for one in times))
    if name == "auto":
        facts += not_chosen(dropped)
    return backend, f"{backend} ({'; '.join(facts)})"


def type_name(dtype: torch.dtype) -> str:
    """As bfloat16, without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def obstacles(device: torch.device, dtype: torch.dtype, dropout: float) -> dict[Backend, str]:
    """Why backends cannot run here, by backend; those that can are left out."""
    found: dict[Backend, str | None] = {
        "varlen": varlen_obstacle(device, dtype, dropout),
        "flash": flash_obstacle(device, dtype),
    }
    return {backend: reason for backend, reason in found.items() if reason}


def measured(
    backends: Iterable[Backend],
    measure: Callable[[Backend], float],
    dropped: dict[Backend, str],
    name: str,
) -> dict[Backend, float]:
    """The measure of each backend; one that raises is added to `dropped`, with the reason.

    Raises ValueError if that is sdpa, or the one given by name.
    """
    results: dict[Backend, float] = {}
    for backend in backends:
        try:
            results[backend] = measure(backend)
        except Exception as problem:  # whatever a kernel on unknown hardware raises
            dropped[backend] = f"it fails here: {str(problem).partition(chr(10))[0]}"
            if backend in ("sdpa", name):
                remedy = "check the installation of torch"
                if backend != "sdpa":
                    remedy = "give --train.attention sdpa"
                message = f"attention {backend} is not usable: {dropped[backend]}; {remedy}"
                raise ValueError(message) from problem
    return results


def fastest(times: dict[Backend, float]) -> Backend:
    """The backend of the shortest time, if that is worth leaving sdpa; without times sdpa."""
    best: Backend = min(times, key=lambda backend: times[backend], default="sdpa")
    if best == "sdpa" or times["sdpa"] <= WORTHWHILE * times[best]:
        return "sdpa"
    return best


def not_chosen(dropped: dict[Backend, str]) -> list[str]:
    """Why backends were not considered, those of one reason together."""
    names: dict[str, list[str]] = {}
    for backend, reason in dropped.items():
        names.setdefault(reason, []).append(backend)
    return [f"not {' or '.join(names[reason])}: {reason}" for reason in names]


def conditions(
    device: torch.device, dtype: torch.dtype, config: LocostConfig
) -> dict[str, str | int | float]:
    """What a choice of `auto` depends on: kept beside it, they tell whether it may be reused."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "dtype": type_name(dtype),
        "heads": config.num_heads,
        "head_dim": config.head_dim,
        "dropout": config.dropout,
    }


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


def elapsed(work: Iterable[Callable[[], None]], device: torch.device) -> float:
    """Milliseconds that the work takes on the device, waits for the host included."""
    if device.type != "cuda":
        start = time.perf_counter()
        for one in work:
            one()
        return 1e3 * (time.perf_counter() - start)
    stream = torch.cuda.current_stream(device)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record(stream)
    for one in work:
        one()
    last.record(stream)
    last.synchronize()
    return first.elapsed_time(last)


def tested(backend: Backend, device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """The error of `self_test`; raises ValueError if it is too large."""
    error = self_test(backend, device, dtype, head_dim)
    if error > TOLERANCES[dtype]:
        raise ValueError(f"a relative error of {error:.1e} exceeds {TOLERANCES[dtype]:.0e}")
    return error


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
        errors += [(x - y).abs().max() / y.abs().max() for x, y in zip(ours, exact, strict=True)]
    return torch.stack(errors).nan_to_num(torch.inf).max().item()


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
