"""What one ATen operator costs a card: kernel launches, bytes read and written, operations.

An operator counts as one launch, as a custom one or a Triton kernel does; a view, or what only
allocates, as none. The few of which CUDA makes several kernels are listed in `_launches`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from pipeline.counting.fake_card import CardTensor

aten = torch.ops.aten
WITHOUT_KERNEL = {
    aten._unsafe_view, aten._reshape_alias, aten.detach, aten.alias, aten.lift_fresh, aten.set_,
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided,
    aten.resize_, aten._efficientzerotensor, aten.empty_permuted,
}  # fmt: skip
"""Views by another name, and allocations."""
ONLY_WRITTEN = {aten.copy_, aten.fill_, aten.zero_}
"""Their first argument is not read."""
LOOKUPS = {aten.embedding, aten.index, aten.index_select, aten.gather}
"""Of their first argument they read as many elements as they return."""
FILL_AND_COPY = {aten.constant_pad_nd, aten.slice_backward, aten.select_backward}
"""They fill the result, then copy into a part of it."""
SYNCS = {
    aten._local_scalar_dense, aten.equal, aten.nonzero, aten.is_nonzero, aten.masked_select,
    aten._unique2, aten.unique_consecutive, aten.unique_dim,
}  # fmt: skip
"""The host waits for their result."""
TRANSFORMS = {aten._fft_r2c, aten._fft_c2r, aten._fft_c2c}


class Work(NamedTuple):
    """Of one operator, or a sum."""

    launches: int = 0
    bytes: int = 0
    """Read and written; what is in a cache is counted too."""
    flops: float = 0.0
    """Of matrix products in a 16-bit type."""
    flops32: float = 0.0
    """Of other matrix products and of FFTs: 5 n log2 n of a complex one, half for a real one."""
    syncs: int = 0
    """Times that the host waits for the card."""

    def __add__(self, other: "Work") -> "Work":  # type: ignore[override]
        return Work._make(a + b for a, b in zip(self, other, strict=True))

    def times(self, count: int) -> "Work":
        """That of several."""
        return Work._make(count * x for x in self)


def work_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Work:
    """The work of an operator (an OpOverload) from its arguments and its result."""
    packet = func.overloadpacket
    syncs = int(packet in SYNCS or _to_host(args, kwargs))
    if func.is_view or packet in WITHOUT_KERNEL:
        return Work(syncs=syncs)
    changed = [
        value for value, argument in zip(args, func._schema.arguments, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]  # fmt: skip
    written = _tensors((result, changed))
    read = _tensors((args, {k: v for k, v in kwargs.items() if k != "out"}))
    if packet in ONLY_WRITTEN:
        read = [x for x in read if x is not args[0]]
    moved = sum(map(touched_bytes, read)) + sum(map(touched_bytes, written))
    if packet in LOOKUPS:
        moved += touched_bytes(result) - touched_bytes(args[0])
    flops = _flops(func, args, kwargs, result)
    narrow = any(x.dtype in (torch.bfloat16, torch.float16) for x in read)
    launches, passes = _launches(packet, args)
    moved += passes * sum(map(touched_bytes, written)) * 2
    if packet is aten._fft_c2r:  # the copy of its input
        moved += 2 * touched_bytes(args[0])
    if packet in FILL_AND_COPY:
        moved += touched_bytes(args[0])
    products, others = (flops, 0.0) if narrow and packet not in TRANSFORMS else (0.0, flops)
    return Work(launches, moved, products, others, syncs)


def touched_bytes(x: Tensor) -> int:
    """Bytes of the distinct elements of a tensor: those of an expanded dimension count once."""
    sizes = (size for size, stride in zip(x.shape, x.stride(), strict=True) if stride or not size)
    return math.prod(sizes) * x.element_size()


def _launches(packet: Any, args: tuple[Any, ...]) -> tuple[int, int]:
    """Kernels, and passes over the result that are kernels of their own.

    FFTs are cuFFT's, one kernel each, then scaled in another pass unless the normalisation is 0;
    the complex-to-real one overwrites its input, so torch copies that first.
    """
    if packet in TRANSFORMS:
        scaled = int(args[2] != 0)
        return 1 + scaled + (packet is aten._fft_c2r), scaled
    return (2 if packet in FILL_AND_COPY else 1), 0


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> float:
    """Operations of matrix products, attention and FFTs; 0 of others."""
    packet = func.overloadpacket
    if packet in flop_registry:
        # Packed rows count as if all were of the longest's length, which a card without data lacks.
        args, kwargs, result = tree_map_only(CardTensor, lambda x: x.elem, (args, kwargs, result))
        return float(flop_registry[packet](*args, **kwargs, out_val=result))
    if packet not in TRANSFORMS:
        return 0.0
    real = result if packet is aten._fft_c2r else args[0]
    points = math.prod(real.shape[d] for d in args[1])
    share = 5.0 if packet is aten._fft_c2c else 2.5
    return share * real.numel() * math.log2(max(points, 2))


def _to_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether values are copied from the card to the CPU."""
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cpu" and _first_on_card(args)


def _first_on_card(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], Tensor) and args[0].device.type == "cuda"


def _tensors(tree: Any) -> list[Tensor]:
    """The distinct tensors of arguments or results, host scalars aside."""
    found = {id(x): x for x in tree_leaves(tree) if isinstance(x, Tensor)}
    return [x for x in found.values() if x.dim() or x.device.type != "cpu"]
