"""Patterns of attention: all keys with a bias by distance, or listed blocks of keys.

Shapes as in `attention_in_parts`; L positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.baselines.attention_in_parts import Part

LARGEST_PART = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Scores that exist at one time, by device; the backward pass has a few copies of them, each of
32 MiB in float32 on a CPU."""
MASKED = -1e10
"""Added to the scores of keys that are not attended to; their weight is 0."""


@dataclass(frozen=True)
class AllKeys:
    """Every position attends to all, with a learned bias by head and distance (A, 2 L - 1)."""

    real: Tensor | None
    """(B, L), True for keys that may be attended to; None: all."""

    def parts(self, queries: Tensor) -> Iterator[Part]:
        """Of some queries."""
        return _cut(queries, queries.shape[2], queries.shape[2])

    def queries(self, x: Tensor, part: Part) -> Tensor:
        """(B, A, L, K) -> (rows, A, N, K)."""
        return x[part.rows, :, part.first : part.last]

    def put_queries(self, whole: Tensor, x: Tensor, part: Part) -> None:
        """(rows, A, N, K) into (B, A, L, K)."""
        whole[part.rows, :, part.first : part.last] = x

    def keys(self, x: Tensor, part: Part) -> Tensor:
        """(B, A, L, K) -> (rows, A, L, K)."""
        return x[part.rows]

    def add_keys(self, whole: Tensor, x: Tensor, part: Part) -> None:
        """(rows, A, L, K) to (B, A, L, K)."""
        whole[part.rows] += x

    def bias(self, part: Part, *learned: Tensor | None) -> Tensor:
        """(1 or rows, A, N, L): the last query sees the window that starts first."""
        (table,) = learned
        assert table is not None
        length = (table.shape[1] + 1) // 2
        windows = table.unfold(1, length, 1)[:, length - part.last : length - part.first]
        bias = windows.flip(1)[None]
        if self.real is None:
            return bias
        return bias.masked_fill(~self.real[part.rows, None, None], MASKED)

    def add_bias(self, totals: list[Tensor | None], gradient: Tensor, part: Part) -> None:
        """The sums over diagonals: rows, each shifted by one more, are added up."""
        (total,) = totals
        if total is not None:
            count, length = gradient.shape[2:]
            width = length + count - 1
            shifted = functional.pad(gradient.sum(0).flip(1), (0, count)).flatten(1)
            sums = shifted[:, : count * width].unflatten(1, (count, width)).sum(1)
            total[:, length - part.last : length - part.last + width] += sums


@dataclass(frozen=True)
class ListedBlocks:
    """Every block of n queries attends to the blocks of n keys that are listed for it.

    The bias is of two learned tensors, None for zeros: the same for all blocks, (1 or A, n, W), for
    the first W keys listed; and by position, (B, A, queries, G), for the next G.
    """

    listed: Tensor
    """(1 or A, blocks of queries, M): numbers of blocks of keys; -1: none."""
    real: Tensor
    """(B, blocks of keys, n), True for keys that may be attended to."""
    width: int
    """W."""

    def parts(self, queries: Tensor) -> Iterator[Part]:
        """Of some blocks."""
        _, blocks, count = self.listed.shape
        return _cut(queries, blocks, count * self.real.shape[2] ** 2)

    def queries(self, x: Tensor, part: Part) -> Tensor:
        """(B, A, L, K) -> (rows and blocks, A, n, K)."""
        return self._blocks(x, part).flatten(0, 1)

    def put_queries(self, whole: Tensor, x: Tensor, part: Part) -> None:
        """(rows and blocks, A, n, K) into (B, A, L, K)."""
        blocks = self._blocks(whole, part)
        blocks.copy_(x.view(blocks.shape))

    def keys(self, x: Tensor, part: Part) -> Tensor:
        """(B, A, blocks of keys n, K), contiguous -> (rows and blocks, A, M n, K)."""
        found = self._split(x).index_select(0, self._numbers(x, part))
        return found.view(-1, x.shape[1], self.listed.shape[2] * self.real.shape[2], x.shape[3])

    def add_keys(self, whole: Tensor, x: Tensor, part: Part) -> None:
        """(rows and blocks, A, M n, K) to (B, A, blocks of keys n, K), contiguous."""
        parts = self._split(x.contiguous()).to(whole.dtype)
        self._split(whole).index_add_(0, self._numbers(whole, part), parts)

    def bias(self, part: Part, *learned: Tensor | None) -> Tensor:
        """(rows and blocks, 1 or A, 1 or n, M n)."""
        shared, by_position = learned
        listed = self.listed[:, part.first : part.last]
        seen = self.real[part.rows][:, listed.clamp(min=0)] & (listed >= 0)[..., None]
        seen = seen.transpose(1, 2).flatten(0, 1).flatten(2)[:, :, None]
        if shared is None:
            bias = torch.zeros(1, 1, 1, self.width, device=seen.device)
        else:
            bias = shared[None]
        if by_position is not None:
            near = bias.expand(len(seen), -1, -1, -1)
            bias = torch.cat([near, self.queries(by_position, part)], dim=-1)
        if missing := seen.shape[-1] - bias.shape[-1]:
            bias = functional.pad(bias, (0, missing))
        return bias.masked_fill(~seen, MASKED)

    def add_bias(self, totals: list[Tensor | None], gradient: Tensor, part: Part) -> None:
        """The shared one is summed over rows and blocks."""
        shared, by_position = totals
        if shared is not None:
            shared += gradient[..., : self.width].sum(0)
        if by_position is not None:
            own = gradient[..., self.width : self.width + by_position.shape[-1]]
            self.put_queries(by_position, own, part)

    def _blocks(self, x: Tensor, part: Part) -> Tensor:
        """A view of some blocks of queries of some rows, (rows, blocks, A, n, K)."""
        size = self.real.shape[2]
        found = x[part.rows, :, part.first * size : part.last * size]
        return found.unflatten(2, (-1, size)).transpose(1, 2)

    def _split(self, x: Tensor) -> Tensor:
        """(.., blocks n, K), contiguous -> (all blocks, n, K)."""
        return x.view(-1, self.real.shape[2], x.shape[-1])

    def _numbers(self, x: Tensor, part: Part) -> Tensor:
        """The keys' blocks of a part among all of x: by row, block of queries, head and list."""
        rows, heads = (torch.arange(count, device=x.device) for count in x.shape[:2])
        sequences = rows[part.rows, None, None, None] * len(heads) + heads[:, None]
        listed = self.listed[:, part.first : part.last].clamp(min=0).transpose(0, 1)
        return (sequences * self.real.shape[1] + listed).flatten()


def _cut(queries: Tensor, count: int, scores: int) -> Iterator[Part]:
    """Parts of rows of `count` queries (or blocks) with `scores` each and a head."""
    rows, heads = queries.shape[:2]
    most = max(1, LARGEST_PART[queries.device.type] // (heads * scores))
    if most >= count:
        for row in range(0, rows, most // count):
            yield Part(slice(row, min(row + most // count, rows)), 0, count)
        return
    parts = -(-count // most)
    for row in range(rows):
        for k in range(parts):
            first, last = k * count // parts, (k + 1) * count // parts
            yield Part(slice(row, row + 1), first, last)
