"""The groups of neighbouring processes that share a source, by torch.distributed."""

from dataclasses import dataclass, field
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.distributed.world import World
from pipeline.model.sequence import ALONE, SequenceGroup


@dataclass
class ConnectedGroup:
    """A `SequenceGroup` of processes that send each other their parts."""

    group: dist.ProcessGroup
    rank: int
    size: int
    bytes_sent: int = field(default=0)
    """To other processes so far; a sum counts as the two passes of a ring."""

    def exchange(self, parts: Tensor) -> Tensor:
        """Part s of (P, ...), contiguous, goes to process s."""
        received = torch.empty(parts.shape, dtype=parts.dtype, device=parts.device)
        dist.all_to_all_single(received, parts, group=self.group)
        self.bytes_sent += parts.nbytes * (self.size - 1) // self.size
        return received

    def stack(self, x: Tensor) -> Tensor:
        """(...) of every process -> (P, ...)."""
        stacked = torch.empty((self.size, *x.shape), dtype=x.dtype, device=x.device)
        dist.all_gather([*stacked], x.contiguous(), group=self.group)
        self.bytes_sent += x.nbytes * (self.size - 1)
        return stacked

    def sum(self, x: Tensor) -> Tensor:
        """In place."""
        dist.all_reduce(x, group=self.group)
        self.bytes_sent += 2 * x.nbytes * (self.size - 1) // self.size
        return x


def sequence_group(world: World) -> SequenceGroup:
    """This process's group; a collective, the first time for each size."""
    return ALONE if world.sequence_size == 1 else _connected(world)


@cache
def _connected(world: World) -> ConnectedGroup:
    group, _ = dist.new_subgroups(world.sequence_size)
    return ConnectedGroup(group, world.sequence_rank, world.sequence_size)
