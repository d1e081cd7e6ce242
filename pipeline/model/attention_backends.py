"""Backends of attention: torch's own on padded rows, or flash attention without padding.

Shapes: B rows, S attended positions, A heads, K channels per head; N and M are the real positions
of all rows, concatenated.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

Backend = Literal["sdpa", "flash", "varlen"]
"""torch's scaled_dot_product_attention, flash-attn's flash_attn_varlen_func, torch's varlen_attn.

The latter two add up the gradient of the queries in no fixed order. Both repeat bit for bit under
torch.use_deterministic_algorithms(True); varlen_attn does not if that only warns.
"""

FLASH_TYPES = (torch.bfloat16, torch.float16)
"""The types of both flash and varlen, which is the same algorithm (FlashAttention-2)."""
INSTALL = "pip install wheel && pip install --no-build-isolation -r requirements-gpu.txt"


class Bounds(NamedTuple):
    """Bounds of rows that are concatenated without padding."""

    cumulative: Tensor
    """(B + 1,) int32: the start of each row, then the end of the last."""
    longest: int
    """Length of the longest row."""


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
    """softmax(q k^T) v row by row, by flash-attn: (N, A, K) over (M, A, K) -> (N, A, K).

    Raises ValueError if flash-attn is missing or does not support the type.
    """
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError as problem:
        raise ValueError(f"attention backend 'flash': {problem}; {INSTALL}") from problem
    check_type("flash", queries.dtype)
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


def varlen_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_bounds: Bounds,
    key_bounds: Bounds,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k^T) v row by row, by torch's varlen_attn: (N, A, K) over (M, A, K) -> (N, A, K).

    Raises ValueError for dropout, which the operator lacks, a type that it does not support, or a
    torch without it.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as problem:
        raise ValueError(f"attention backend 'varlen': {problem}; choose sdpa") from problem
    check_type("varlen", queries.dtype)
    if dropout:
        raise ValueError(
            f"attention backend 'varlen' has no dropout, and the model trains with {dropout}: "
            "choose the backend flash or sdpa, or set the dropout to 0"
        )
    # Without a scale it would be 1/sqrt(K). A window is (positions before, after), -1 for all; the
    # operator recognises causal attention by the tuple (-1, 0), and aligns its mask to the end of
    # rows whose queries and keys differ in number.
    context = varlen_attn(
        queries,
        keys,
        values,
        query_bounds.cumulative,
        key_bounds.cumulative,
        query_bounds.longest,
        key_bounds.longest,
        scale=1.0,
        window_size=(-1, 0) if causal else (-1, -1),
    )
    return cast(Tensor, context)


def check_type(backend: str, dtype: torch.dtype) -> None:
    """Raise ValueError for a type that flash attention does not support."""
    if dtype not in FLASH_TYPES:
        raise ValueError(
            f"attention backend {backend!r} got {dtype}, expected bfloat16 or float16: run "
            "in bf16 autocast, or choose the backend sdpa"
        )


PACKED: dict[Backend, Callable[..., Tensor]] = {"varlen": varlen_attend, "flash": flash_attend}
"""Attention of packed rows by backend; all take what `flash_attend` takes."""


def flash_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why flash-attn cannot run here, and the remedy; None if it can."""
    if common := packed_obstacle(device, dtype):
        return common
    try:
        from flash_attn import flash_attn_varlen_func  # noqa: F401
    except ImportError as problem:
        return f"flash-attn cannot be imported ({problem}): {INSTALL}"
    return None


def varlen_obstacle(device: torch.device, dtype: torch.dtype, dropout: float = 0.0) -> str | None:
    """Why torch's varlen_attn cannot run here with this dropout, and the remedy; None if it can."""
    if common := packed_obstacle(device, dtype):
        return common
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: F401
    except ImportError as problem:
        return f"torch {torch.__version__} has no varlen_attn ({problem}): install requirements.txt"
    if dropout:
        return f"varlen_attn has no dropout, and the model trains with {dropout}"
    return None


def packed_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no backend of packed rows can run here, and the remedy; None if one may."""
    if device.type != "cuda":
        return f"flash attention needs a CUDA device, and this is {device}"
    if dtype not in FLASH_TYPES:
        return f"flash attention supports bfloat16 and float16, not {dtype}: set precision bf16"
    return None
