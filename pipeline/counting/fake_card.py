"""Run a model as on a CUDA card, without one: tensors hold no data, operators only infer shapes.

torch's own fake tensors cannot do it where torch was built without CUDA: autograd asks for the
device's streams. Here C++ sees the meta device, but the dispatcher and Python see a card, so that
the path is the one taken there: `x.device.type` is cuda, autograd and autocast are CUDA's. What
only a build with CUDA registers, or C++ decides by its device, is in `_kernels`.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

CARD = torch.device("cuda", 0)
PRODUCTS = ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "scaled_dot_product_attention")
"""The operators of the models that autocast computes in the narrow type."""
BIAS_ALIGNMENT = 16
"""Keys to a multiple of which the memory-efficient attention needs its bias padded."""
aten = torch.ops.aten


class CardTensor(Tensor):
    """A tensor without data that dispatches as one on a card."""

    elem: Tensor
    """The same on the meta device."""
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, elem: Tensor) -> "CardTensor":
        made = Tensor._make_subclass(cls, elem, False, device_for_backend_keys=CARD)
        made.elem = elem
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} on a fake card's tensor outside `FakeCard`")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The card."""
        return CARD

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """As on a card."""
        return True

    def tolist(self) -> Any:
        """Zeros. C++ reads the data of a list directly; on a card it is copied first."""
        return self.cpu().tolist()


Record = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Receives each operator that reads or writes a card's tensor, its arguments and its result."""


class FakeCard(TorchDispatchMode):
    """Inside, `device="cuda"` makes tensors without data.

    What a program reads from them, numbers, flags and lists, is zero; but all are finite, `equal`
    is true, and `nonzero` finds all.
    """

    _mode_key = torch._C._TorchDispatchModeKey.FAKE  # or Python's factories initialise CUDA

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, CardTensor)]
        inner, named = tree_map_only(CardTensor, lambda x: x.elem, (args, kwargs))
        result = _evaluate(func, inner, named, bool(given))
        same = {id(x.elem): x for x in given}  # in-place operators return their argument

        def on_card(x: Tensor) -> Tensor:
            return same[id(x)] if id(x) in same else CardTensor(x) if x.is_meta else x

        result = tree_map_only(Tensor, on_card, result)
        if given or any(isinstance(x, CardTensor) for x in tree_leaves(result)):
            self.record(func, args, kwargs, result)
        return result


def _evaluate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: bool) -> Any:
    """The operator on meta tensors."""
    if func is aten._local_scalar_dense.default and given:
        return torch.zeros((), dtype=args[0].dtype).item()
    if func is aten.equal.default and given:
        return True
    if func is aten.nonzero.default and given:
        return args[0].new_empty(args[0].numel(), args[0].dim(), dtype=torch.long)
    device = kwargs.get("device")
    kind = None if device is None else torch.device(device).type
    if kind == "cpu" and given:
        found = func(*args, **{**kwargs, "device": "meta"})
        return torch.zeros(found.shape, dtype=found.dtype)
    return func(*args, **({**kwargs, "device": "meta"} if kind == CARD.type else kwargs))


def to_card(module: nn.Module) -> None:
    """Replace the parameters and buffers of a module built on the meta device."""
    made: dict[int, CardTensor] = {}  # tied parameters stay tied
    for part in module.modules():
        for values in (part._parameters, part._buffers):
            for name, value in values.items():
                if value is not None:
                    if id(value) not in made:
                        made[id(value)] = CardTensor(value.detach())
                        made[id(value)].requires_grad_(value.requires_grad)
                        made[id(value)]._is_param = isinstance(value, nn.Parameter)
                    values[name] = made[id(value)]  # type: ignore[assignment]


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> CardTensor:
    """A tensor on the fake card."""
    return CardTensor(torch.empty(shape, dtype=dtype, device="meta"))


@contextmanager
def autocast(enabled: bool = True) -> Iterator[None]:
    """torch.autocast("cuda", torch.bfloat16), which is off where torch sees no card; inside, it and
    torch.autocast itself work."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", enabled)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with (
            patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            patch.object(torch.cuda, "is_bf16_supported", lambda: True),
        ):
            yield
    finally:
        _narrow.clear()
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@contextmanager
def registered() -> Iterator[None]:
    """The kernels that a build without CUDA lacks, or cannot choose, for the time of the block."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # autocast's own kernels look at the C++ device
            for name, key, kernel in _kernels():
                library.impl(name, kernel, key, allow_override=True)
        yield
    finally:
        library._destroy()


def _kernels() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Operator, dispatch key, kernel. Autocast's list of operators for float32 is left out: the
    model chooses that type itself."""
    for name in PRODUCTS:
        yield name, "AutocastCUDA", _in_narrow_type(getattr(aten, name).default)
    yield "scaled_dot_product_attention", "AutogradCUDA", _attention
    yield "rms_norm", "AutogradCUDA", _FusedRMSNorm.apply_to
    yield "isfinite", "AutogradCUDA", lambda x: torch.ones((), dtype=torch.bool).expand(x.shape)


_narrow: dict[int, tuple[Tensor, Tensor]] = {}
"""Autocast's cache: parameters by identity, with their copies."""


def _in_narrow_type(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Autocast of an operator: float32 arguments are cast, a parameter once if there is a cache."""

    def cast_one(x: Any) -> Any:
        if not isinstance(x, CardTensor) or x.dtype != torch.float32:
            return x
        dtype = torch.get_autocast_dtype("cuda")
        if not (x.is_leaf and x.requires_grad and torch.is_autocast_cache_enabled()):
            return x.to(dtype)
        if id(x) not in _narrow:
            _narrow[id(x)] = x, x.to(dtype)
        return _narrow[id(x)][1]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            args, kwargs = tree_map(cast_one, (args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def _attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """One of torch's fused kernels: flash without a mask, else the memory-efficient one."""
    if mask is None:
        flash = aten._scaled_dot_product_flash_attention
        return flash(queries, keys, values, dropout, causal, False, scale=scale)[0]
    if mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=queries.dtype)
        mask = torch.where(mask, zero, -torch.inf)
    length = keys.shape[2]
    if length % BIAS_ALIGNMENT:
        mask = functional.pad(mask, (0, -length % BIAS_ALIGNMENT))[..., :length]
    efficient = aten._scaled_dot_product_efficient_attention
    mask, log_sums = mask.expand(*queries.shape[:3], length), torch.is_grad_enabled()
    return efficient(queries, keys, values, mask, log_sums, dropout, causal, scale=scale)[0]


class _FusedRMSNorm(torch.autograd.Function):
    """rms_norm by its fused operators, which torch differentiates on a card alone."""

    @staticmethod
    def apply_to(
        x: Tensor, shape: list[int], weight: Tensor | None = None, epsilon: float | None = None
    ) -> Tensor:
        """The operator's signature."""
        return _FusedRMSNorm.apply(x, shape, weight, epsilon)

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Any, weight: Any, epsilon: Any) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            normed, reciprocal = aten._fused_rms_norm(x, shape, weight, epsilon)
        ctx.shape = shape
        ctx.save_for_backward(x, reciprocal, weight)
        return normed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, reciprocal, weight = ctx.saved_tensors
        with torch._C._AutoDispatchBelowAutograd():
            wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
            grads = aten._fused_rms_norm_backward(grad, x, ctx.shape, reciprocal, weight, wanted)
        return grads[0], None, grads[1], None
