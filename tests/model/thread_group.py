"""Groups of threads in place of processes, for quick tests of what the processes compute."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ThreadGroup:
    """One thread's `SequenceGroup`; all of a group share `board`."""

    def __init__(self, rank: int, size: int, board: list[Tensor | None], barrier: Barrier) -> None:
        self.rank, self.size = rank, size
        self._board, self._barrier = board, barrier

    def exchange(self, parts: Tensor) -> Tensor:
        return torch.stack([sent[self.rank] for sent in self._all(parts)])

    def stack(self, x: Tensor) -> Tensor:
        return torch.stack(self._all(x))

    def sum(self, x: Tensor) -> Tensor:
        return self.stack(x).sum(0)

    def _all(self, x: Tensor) -> list[Tensor]:
        self._board[self.rank] = x.detach().clone()
        self._barrier.wait(30)
        found = list(self._board)
        self._barrier.wait(30)
        return found


def in_group(size: int, work: Callable[[ThreadGroup], T]) -> list[T]:
    """What `work` returns in each of `size` threads."""
    board, barrier = [None] * size, Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadGroup(r, size, board, barrier) for r in range(size)]))
