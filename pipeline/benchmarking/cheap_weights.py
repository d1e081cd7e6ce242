"""Random weights drawn quickly, for models of which only time and memory are measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DRAWN = 1 << 16
"""Elements of a tensor that are drawn; its rest repeats them."""


@contextmanager
def repeated_draws() -> Iterator[None]:
    """Inside, `normal_` and `uniform_` draw DRAWN elements of a tensor and repeat them.

    The values keep their law, so they are finite and not denormal as drawn ones are; what
    a pass costs does not depend on more.
    """
    with _RepeatedDraws():
        yield


class _RepeatedDraws(TorchDispatchMode):
    def __torch_dispatch__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        draws = function.overloadpacket in (torch.ops.aten.normal_, torch.ops.aten.uniform_)
        if not draws or arguments[0].numel() <= DRAWN or not arguments[0].is_contiguous():
            return function(*arguments, **(named or {}))
        weights: Tensor = arguments[0]
        drawn = function(weights.new_empty(DRAWN), *arguments[1:], **(named or {}))
        for part in weights.view(-1).split(DRAWN):
            part.copy_(drawn[: part.numel()])
        return weights
