"""Causal self-attention of the targets: all positions at once, or step by step.

Shapes: R rows, T target positions, H = d_model, A heads, K channels per head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import Attention, attend, rotate


@dataclass(frozen=True)
class Causal:
    """A whole target; each position attends to those up to itself.

    Positions are encoded by a bias or by rotation.
    """

    bias: Tensor | None
    """(A, T, T), -inf at later positions."""
    rotation: Tensor | None
    """(T, K / 2, 2): cosine and sine of each position."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(R, T, H) -> (R, T, H)."""
        queries, keys, values = project(attention, x, self.rotation)
        causal, dropout = self.bias is None, attention.drop
        return attention.output(attend(queries, keys, values, self.bias, causal, dropout))


@dataclass
class Past:
    """The keys and values that one block's self-attention computed in earlier steps."""

    held: Tensor
    """(2, R, A, max_length, K): keys and values, filled from the front."""
    reversed_bias: Tensor | None
    """(A, max_length): the relative bias from the farthest distance down to 0."""
    rotation: Tensor | None
    """(max_length, K / 2, 2): cosine and sine of each position."""
    length: int = 0
    """Positions held so far."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """The next position (R, 1, H) -> (R, 1, H); appends it to the past."""
        now = slice(self.length, self.length + 1)
        rotation = None if self.rotation is None else self.rotation[now]
        keys, values = self.held
        queries, keys[:, :, now], values[:, :, now] = project(attention, x, rotation)
        self.length += 1
        keys, values = keys[:, :, : self.length], values[:, :, : self.length]
        bias = None if self.reversed_bias is None else self.reversed_bias[:, None, -self.length :]
        return attention.output(attend(queries, keys, values, bias, dropout=attention.drop))

    def restart(self) -> None:
        """Back to before the first position."""
        self.length = 0


class Position:
    """The next position as a number on the device, so that every step is the same operations.

    `Past` cuts its buffers where they are filled; here all of them is attended, with a bias of -inf
    from the next position on.
    """

    def __init__(self, past: Past) -> None:
        size, like = past.held.shape[3], past.held
        reversed_bias = past.reversed_bias
        bias = like.new_zeros(1, size) if reversed_bias is None else reversed_bias[:, None]
        unwritten = torch.full_like(bias, -torch.inf)
        self._windows = torch.cat([bias, unwritten], dim=-1).to(like.dtype)  # (.., 2 max_length)
        self._first = torch.arange(size - 1, 2 * size - 1, device=like.device)  # position 0's
        self._rotations = past.rotation
        self.index = torch.zeros(1, dtype=torch.long, device=like.device)
        """(1,): the position's number."""
        self.length = 0
        """The same number on the host."""
        self.bias: Tensor
        """By `look_up`: the relative bias (A, 1, max_length), or zeros (1, max_length); -inf where
        nothing is written."""
        self.rotation: Tensor | None = None
        """By `look_up`: cosine and sine (1, K / 2, 2)."""

    def look_up(self) -> None:
        """Set the bias and the rotation of this position, for all blocks."""
        self.bias = self._windows.index_select(-1, self._first - self.index)
        if self._rotations is not None:
            self.rotation = self._rotations.index_select(0, self.index)

    def restart(self) -> None:
        """Back to the first position."""
        self.index.zero_()
        self.length = 0


@dataclass
class FixedPast:
    """`Past` in operations whose shapes are the same at every position."""

    held: Tensor
    """(2, R, A, max_length, K): keys and values, finite also where nothing is written yet."""
    position: Position
    """Shared by all blocks."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """The next position (R, 1, H) -> (R, 1, H); writes it into the past."""
        queries, *new = project(attention, x, self.position.rotation)
        for buffer, one in zip(self.held, new, strict=True):
            buffer.index_copy_(2, self.position.index, one)
        keys, values, bias = *self.held, self.position.bias
        return attention.output(attend(queries, keys, values, bias, dropout=attention.drop))

    @property
    def length(self) -> int:
        """Positions held so far."""
        return self.position.length

    def restart(self) -> None:
        """Back to before the first position, for all blocks."""
        self.position.restart()


def project(
    attention: Attention, x: Tensor, rotation: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (R, A, T, K) of x (R, T, H), the first two rotated."""
    queries, keys, values = attention.queries_keys_values(x)
    if rotation is None:
        return queries, keys, values
    return rotate(queries, rotation), rotate(keys, rotation), values
