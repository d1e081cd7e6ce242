"""Sequence parallelism: one document's source shared by the processes of a group.

Each process holds a part of the positions of everything that treats tokens alike. The convolution
alone needs all positions: for it the processes exchange positions for channels and back. Each
process computes the loss of the whole target, and every exchange has its adjoint as backward, so
that a process's gradient is that of the sum of all processes' losses.

Shapes: P processes, N rows, H channels, L positions of the whole source, l = L / P of a part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .config import LocostConfig


class SequenceGroup(Protocol):
    """The processes that share a source, in the order of their parts; no method keeps gradients.

    Every method is a collective: all of the group call it, with tensors of one shape and type.
    """

    @property
    def rank(self) -> int:
        """This process's place in the group."""
        ...

    @property
    def size(self) -> int:
        """P."""
        ...

    def exchange(self, parts: Tensor) -> Tensor:
        """Send part s of (P, ...) to process s; the result's part s is from process s."""
        ...

    def stack(self, x: Tensor) -> Tensor:
        """Every process's x (...), in their order: (P, ...)."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every process's x, the same bits on all of them; x may be overwritten."""
        ...


@dataclass(frozen=True)
class Unconnected:
    """One process, in place of a group of `size`: nothing is sent.

    Results are right for size 1, the default of every model. With a larger one, time, memory and
    shapes are those of a process of such a group, which can be measured without the others.
    """

    size: int = 1
    rank: int = 0

    def exchange(self, parts: Tensor) -> Tensor:
        """As if each process sent what this one would."""
        return parts.clone()

    def stack(self, x: Tensor) -> Tensor:
        """As if every process had x."""
        return torch.stack([x] * self.size)

    def sum(self, x: Tensor) -> Tensor:
        """As if the other processes had zeros."""
        return x


ALONE = Unconnected()


def check_sequence(
    config: LocostConfig, size: int, option: str = "--train.sequence_parallel_size"
) -> None:
    """Raise ValueError for a model that a group of `size` processes cannot compute; `option`: what
    set the size."""
    if config.d_model % size:
        raise ValueError(
            f"{option} {size} does not divide model.d_model {config.d_model}, whose channels the "
            f"processes share; set {option} to a divisor"
        )
    if size > 1 and config.published_convolution:
        raise ValueError(
            f"{option} is {size} with model.published_convolution true, whose result depends on "
            f"the padded length; set {option} 1"
        )


def own_part(
    input_ids: Tensor, mask: Tensor | None, group: SequenceGroup
) -> tuple[Tensor, Tensor | None]:
    """This process's part (B, l) of a source and its mask (B, L), padded to a multiple of P."""
    if group.size == 1:
        return input_ids, mask
    if mask is None:
        mask = torch.ones_like(input_ids)
    length = -(-input_ids.shape[1] // group.size)
    padding = (0, group.size * length - input_ids.shape[1])
    ids, own_mask = (
        functional.pad(x, padding).narrow(1, group.rank * length, length) for x in (input_ids, mask)
    )
    return ids, own_mask


def own_channels(channels: int, group: SequenceGroup) -> slice:
    """Those of H that this process has after `swap`."""
    size = channels // group.size
    return slice(group.rank * size, (group.rank + 1) * size)


def swap(x: Tensor, group: SequenceGroup) -> Tensor:
    """All channels of own positions (N, H, l) -> all positions of own channels (N, H / P, L)."""
    return x if group.size == 1 else _Swap.apply(x, group)


def unswap(x: Tensor, group: SequenceGroup) -> Tensor:
    """All positions of own channels (N, H / P, L) -> all channels of own positions (N, H, l)."""
    return x if group.size == 1 else _Unswap.apply(x, group)


class _Swap(torch.autograd.Function):
    """`swap`; each element goes to one place, so its adjoint is the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: SequenceGroup) -> Tensor:
        ctx.group = group
        return _to_positions(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _to_channels(grad, ctx.group), None


class _Unswap(torch.autograd.Function):
    """`unswap`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: SequenceGroup) -> Tensor:
        ctx.group = group
        return _to_channels(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _to_positions(grad, ctx.group), None


def _to_positions(x: Tensor, group: SequenceGroup) -> Tensor:
    """(N, H, l) -> (N, H / P, L)."""
    parts = group.exchange(x.unflatten(1, (group.size, -1)).movedim(1, 0).contiguous())
    return parts.movedim(0, 2).flatten(2)


def _to_channels(x: Tensor, group: SequenceGroup) -> Tensor:
    """(N, H / P, L) -> (N, H, l)."""
    parts = group.exchange(x.unflatten(2, (group.size, -1)).movedim(2, 0).contiguous())
    return parts.movedim(0, 1).flatten(1, 2)


def own_seed(group: SequenceGroup) -> int:
    """A random number from torch's random state, which all of the group share, for this process."""
    return int(torch.randint(1 << 62, ())) + group.rank


@contextmanager
def own_random(group: SequenceGroup, device: torch.device, training: bool) -> Iterator[None]:
    """Random numbers inside differ between the processes of the group; those after it do not.

    Only in training are there any.
    """
    if group.size == 1 or not training:
        yield
        return
    seed = own_seed(group)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
