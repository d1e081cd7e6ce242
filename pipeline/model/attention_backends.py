"""The kernel that computes attention: torch's own, or flash-attn's without padding.

Shapes: B rows, T target and S attended positions, A heads, K channels per head; N and M are all
rows' real positions one after the other.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .attention import attend

Backend = Literal["sdpa", "flash"]
"""torch's scaled_dot_product_attention, or flash-attn's flash_attn_varlen_func."""

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Largest error of a backend by type, relative to the largest reference value."""
FLASH_TYPES = (torch.bfloat16, torch.float16)
INSTALL = "pip install --no-build-isolation -r requirements-gpu.txt, on a machine with a GPU"


class Bounds(NamedTuple):
    """Where rows lie that follow one another without padding."""

    cumulative: Tensor
    """(B + 1,) int32: the start of each row, then the end of the last."""
    longest: int
    """No row is longer."""


def equal_bounds(rows: int, length: int, device: torch.device) -> Bounds:
    """The bounds of rows of one length."""
    ends = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=device)
    return Bounds(ends, length)


def remove_padding(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Bounds]:
    """(B, S, ...) and its mask (B, S) of 1 and 0, None for all real -> (M, ...), its bounds."""
    if mask is None:
        return x.flatten(0, 1), equal_bounds(x.shape[0], x.shape[1], x.device)
    real = mask.bool().flatten().nonzero().squeeze(1)
    cumulative = functional.pad(mask.bool().sum(1).cumsum(0), (1, 0)).to(torch.int32)
    return x.flatten(0, 1).index_select(0, real), Bounds(cumulative, x.shape[1])


def flash_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_bounds: Bounds,
    key_bounds: Bounds,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k^T) v row by row: (N, A, K) over (M, A, K) -> (N, A, K).

    Raises ValueError where flash-attn is missing, or does not take the type.
    """
    try:  # only where it is asked for
        from flash_attn import flash_attn_varlen_func
    except ImportError as problem:
        raise ValueError(f"attention backend 'flash': {problem}; {INSTALL}") from problem
    if queries.dtype not in FLASH_TYPES:
        raise ValueError(
            f"attention backend 'flash' got {queries.dtype}, and takes bfloat16 or float16: run "
            "in bf16 autocast, or choose the backend sdpa"
        )
    return flash_attn_varlen_func(
        queries,
        keys,
        values,
        query_bounds.cumulative,
        key_bounds.cumulative,
        query_bounds.longest,
        key_bounds.longest,
        dropout_p=dropout,
        softmax_scale=1.0,
        causal=causal,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def choose_backend(
    name: str, device: torch.device, dtype: torch.dtype, head_dim: int = 64
) -> tuple[Backend, str]:
    """The backend for attention in `dtype` on the device, tested there, and why, in one line.

    `auto`: flash where it can run, else sdpa. Raises ValueError for a backend asked for by name
    that cannot run here, and where the chosen one fails its test.
    """
    if name not in ("auto", "sdpa", "flash"):
        raise ValueError(f"attention {name!r} is unknown: give auto, sdpa or flash")
    obstacle = None if name == "sdpa" else flash_obstacle(device, dtype)
    if name == "flash" and obstacle:
        raise ValueError(f"attention flash cannot be had: {obstacle}; or choose sdpa or auto")
    backend: Backend = "sdpa" if name == "sdpa" or obstacle else "flash"
    remedy = (
        "give --train.attention sdpa" if backend == "flash" else "check the installation of torch"
    )
    where = f"in {str(dtype).removeprefix('torch.')} on {device}"
    try:
        error = self_test(backend, device, dtype, head_dim)
    except Exception as problem:
        message = f"attention backend {backend} fails {where}: {problem}; {remedy}"
        raise ValueError(message) from problem
    if error > TOLERANCES[dtype]:
        raise ValueError(
            f"attention backend {backend} is wrong {where}: its relative error of {error:.1e} "
            f"exceeds {TOLERANCES[dtype]:.0e}; {remedy}"
        )
    reason = f"; not flash: {obstacle}" if obstacle else ""
    return backend, f"{backend} (relative error {error:.1e} {where}{reason})"


def flash_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why flash-attn cannot run here and what to do about it; None: it can."""
    if device.type != "cuda":
        return f"flash-attn needs a CUDA device, and this is {device}"
    try:
        from flash_attn import flash_attn_varlen_func  # noqa: F401
    except ImportError as problem:
        return f"flash-attn cannot be imported ({problem}): {INSTALL}"
    if dtype not in FLASH_TYPES:
        return f"flash-attn takes bfloat16 and float16, not {dtype}: set precision bf16"
    return None


def self_test(backend: Backend, device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """The backend's largest error relative to float64, of results and gradients.

    Tried are rows of unequal length that few positions attend, and one length attended causally.
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
    """Attention's result, and the gradients of its product with `direction`."""
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


def flash_masked(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention by flash-attn, called as the decoder calls it."""
    rows, _, length, _ = queries.shape
    packed = queries.transpose(1, 2).flatten(0, 1)
    bounds = equal_bounds(rows, length, queries.device)
    real_keys, key_bounds = remove_padding(keys.transpose(1, 2), mask)
    real_values, _ = remove_padding(values.transpose(1, 2), mask)
    context = flash_attend(packed, real_keys, real_values, bounds, key_bounds, causal=mask is None)
    return context.unflatten(0, (rows, length)).transpose(1, 2)


BACKENDS: dict[Backend, AttendMasked] = {"sdpa": sdpa_masked, "flash": flash_masked}
