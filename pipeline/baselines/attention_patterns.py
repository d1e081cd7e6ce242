"""Patterns of attention: all keys with a bias by distance, or listed blocks of keys.

Shapes as in `attention_in_parts`; L positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.baselines.attention_in_parts import LARGEST_PART

MASKED = -1e10
"""Added to the scores of keys that are not attended to; their weight is 0."""

Part = tuple[int, int]
"""First and last + 1 query, or block of queries."""


@dataclass(frozen=True)
class AllKeys:
    """Every position attends to all, with a learned bias by head and distance (A, 2 L - 1)."""

    real: Tensor | None
    """(B, L), True for keys that may be attended to; None: all."""

    def parts(self, queries: Tensor) -> Iterator[tuple[int, Part]]:
        """Some queries of a row."""
        rows, heads, length, _ = queries.shape
        for row in range(rows):
            for part in _cut(length, LARGEST_PART // (heads * length)):
                yield row, part

    def queries(self, x: Tensor, part: Part) -> Tensor:
        """(A, L, K) -> (1, A, N, K)."""
        return x[None, :, slice(*part)]

    def keys(self, x: Tensor, part: Part) -> Tensor:
        """(A, L, K) -> (1, A, L, K)."""
        return x[None]

    def add_keys(self, total: Tensor, gradient: Tensor, part: Part) -> None:
        """Add (1, A, L, K) to (A, L, K)."""
        total += gradient[0]

    def bias(self, row: int, part: Part, *learned: Tensor | None) -> Tensor:
        """(1, A, N, L)."""
        (table,) = learned
        assert table is not None
        length = (table.shape[1] + 1) // 2
        # Query i sees the window that starts at length - 1 - i.
        windows = table.unfold(1, length, 1)[:, length - part[1] : length - part[0]].flip(1)
        if self.real is not None:
            windows.masked_fill_(~self.real[row], MASKED)
        return windows[None]

    def add_bias(self, totals: list[Tensor | None], row: int, part: Part, gradient: Tensor) -> None:
        """The sums over diagonals: rows, each shifted by one more, are added up."""
        (total,) = totals
        if total is not None:
            count, length = gradient.shape[2:]
            width = length + count - 1
            shifted = functional.pad(gradient[0].flip(1), (0, count)).flatten(1)
            sums = shifted[:, : count * width].unflatten(1, (count, width)).sum(1)
            total[:, length - part[1] : length - part[0] + length - 1] += sums


@dataclass(frozen=True)
class ListedBlocks:
    """Every block of queries attends to the blocks of keys that are listed for it.

    The bias is of two learned tensors, None for zeros: the same for all blocks, (1 or A, n, W), for
    the first W keys listed; and by position, (B, A, queries, G), for the next G.
    """

    size: int
    """Positions of a block, n."""
    listed: Tensor
    """(1 or A, blocks of queries, M): numbers of blocks of keys; -1: none."""
    real: Tensor
    """(B, blocks of keys, n), True for keys that may be attended to."""
    width: int
    """W."""

    def parts(self, queries: Tensor) -> Iterator[tuple[int, Part]]:
        """Some blocks of a row."""
        rows, heads = queries.shape[:2]
        _, blocks, count = self.listed.shape
        for row in range(rows):
            for part in _cut(blocks, LARGEST_PART // (heads * count * self.size**2)):
                yield row, part

    def queries(self, x: Tensor, part: Part) -> Tensor:
        """(A, L, K) -> (A, blocks, n, K)."""
        first, last = part
        return x[:, first * self.size : last * self.size].unflatten(1, (-1, self.size))

    def keys(self, x: Tensor, part: Part) -> Tensor:
        """(A, blocks of keys n, K), contiguous -> (A, blocks, M n, K)."""
        blocks = x.view(-1, self.size, x.shape[-1])
        found = blocks.index_select(0, self._numbers(len(x), part))
        return found.view(len(x), part[1] - part[0], -1, x.shape[-1])

    def add_keys(self, total: Tensor, gradient: Tensor, part: Part) -> None:
        """Add (A, blocks, M n, K) to (A, blocks of keys n, K)."""
        parts = gradient.reshape(-1, self.size, total.shape[-1]).to(total.dtype)
        numbers = self._numbers(len(total), part)
        total.view(-1, self.size, total.shape[-1]).index_add_(0, numbers, parts)

    def bias(self, row: int, part: Part, *learned: Tensor | None) -> Tensor:
        """(1 or A, blocks, 1 or n, M n)."""
        shared, by_position = learned
        listed = self.listed[:, slice(*part)]
        seen = (self.real[row][listed.clamp(min=0)] & (listed >= 0)[..., None]).flatten(2)
        if shared is None:
            bias = torch.zeros(1, 1, 1, self.width, device=seen.device)
        else:
            bias = shared[:, None].expand(-1, seen.shape[1], -1, -1)
        if by_position is not None:
            bias = torch.cat([bias, self.queries(by_position[row], part)], dim=-1)
        bias = functional.pad(bias, (0, seen.shape[2] - bias.shape[-1]))
        return bias.masked_fill(~seen[:, :, None], MASKED)

    def add_bias(self, totals: list[Tensor | None], row: int, part: Part, gradient: Tensor) -> None:
        """The shared one is summed over blocks."""
        shared, by_position = totals
        if shared is not None:
            shared += gradient[..., : self.width].sum(1)
        if by_position is not None:
            own = gradient[..., self.width : self.width + by_position.shape[-1]]
            self.queries(by_position[row], part).copy_(own)

    def _numbers(self, heads: int, part: Part) -> Tensor:
        """The blocks of keys of a part among those of all heads, one after another."""
        blocks = self.real.shape[1]
        of_head = torch.arange(heads, device=self.listed.device)[:, None, None] * blocks
        return (self.listed[:, slice(*part)].clamp(min=0) + of_head).flatten()


def _cut(count: int, most: int) -> Iterator[Part]:
    """0 to `count` in parts of equal size, at most `most` or 1."""
    parts = -(-count // max(1, most))
    for k in range(parts):
        yield k * count // parts, (k + 1) * count // parts
