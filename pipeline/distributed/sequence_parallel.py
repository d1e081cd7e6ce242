"""The groups of neighbouring processes that share a source, by torch.distributed."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.common.command_line import described
from pipeline.distributed.device import is_out_of_memory
from pipeline.distributed.rendezvous import TIMEOUT
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


OPTION = "--sequence_parallel_size"
"""Of the commands that read sources with a trained model."""


def in_sequences(world: World, size: int, program: str, several: bool = True) -> World:
    """The processes in groups of `size`, or with not `several` in one of them.

    Raises ValueError naming the command that starts a fitting number.
    """
    if size == 1 or (world.size % size == 0 and (several or world.size == size)):
        return world.in_sequences(size)
    raise ValueError(
        f"{OPTION} {size} takes {'a multiple of ' * several}{size} processes, and there "
        f"{'is 1' if world.size == 1 else f'are {world.size}'}; start them with "
        f"`deepspeed --num_gpus {size} {program} ... {OPTION} {size}`"
    )


@contextmanager
def ends_together(group: SequenceGroup) -> Iterator[None]:
    """End this process where what is done inside fails on it: the others of the group, who wait for
    it in an exchange, are then ended by their launcher.

    A ValueError is what all of them meet, and passes.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        if group.size == 1:
            raise
        if isinstance(error, OSError) or is_out_of_memory(error):
            print(f"error: {described(error)}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def sequence_group(world: World) -> SequenceGroup:
    """This process's group; a collective, the first time for each size."""
    return ALONE if world.sequence_size == 1 else _connected(world)


@cache
def _connected(world: World) -> ConnectedGroup:
    group, _ = dist.new_subgroups(world.sequence_size, timeout=TIMEOUT)
    return ConnectedGroup(group, world.sequence_rank, world.sequence_size)
