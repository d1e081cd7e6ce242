"""A layer's convolution kernels, kept between documents while its parameters stand still.

Shapes: H channels, N complex modes, D directions, K lags. A kernel is a prefix of every longer one:
the longest so far serves all documents up to its length, and grows for a longer one. It is computed
in chunks of lags and blocks of channels that do not depend on the document, so that its bits do not
depend on which documents came before.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .config import LocostConfig
from .vandermonde import Vandermonde, modes

BLOCK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Elements of the largest work array of one block of channels: on a CPU it should stay in cache."""
TRUNCATED_FROM = 1 << 14
"""Without gradients, kernels of longer inputs end where the bound of `reach` is met; they are not
kept."""
INNER = 64
"""Lags of the inner level of the product."""
CHUNK = 8 * INNER
"""Lags computed together."""
KEPT_BYTES = 512 << 20
"""Maximum bytes of the kept kernels of all layers, in float32."""


class KeptKernels:
    """The kernels of one layer, up to some lag."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Most lags K kept."""
        self.used = True
        self.forget()

    def use(self, used: bool) -> None:
        """Keep kernels from now on, or none."""
        self.used = used
        if not used:
            self.forget()

    def forget(self) -> None:
        """Keep nothing."""
        self.directions: Tensor | None = None
        """(D, H, K), a multiple of CHUNK."""
        self.parameters: list[Tensor] = []
        """Copies of what the kernels were computed from: parameters also change by ways that leave
        no trace (`parameter.data`, optimizers, sharding)."""

    @property
    def bytes(self) -> int:
        """Bytes held."""
        kernels = [] if self.directions is None else [self.directions]
        return sum(tensor.nbytes for tensor in (*kernels, *self.parameters))

    def kernels(
        self, length: int, parameters: Sequence[Tensor], hold: bool, dtype: torch.dtype
    ) -> Tensor | None:
        """At least `length` lags of the kernels (D, H, K) of the arguments of `modes`, computed
        only where they are not kept; None, and nothing is done, beyond the limit or if not used."""
        if length > self.limit or not self.used:
            return None
        kept = self.directions
        if kept is None or kept.dtype != dtype or not same(parameters, self.parameters):
            self.forget()
            self.parameters = [parameter.detach().clone() for parameter in parameters]
            kept = None
        begin, end = 0 if kept is None else kept.shape[-1], whole_chunks(length)
        if begin < end:
            more = chunks(parameters, hold, dtype, begin, end)
            kept = self.directions = more if kept is None else torch.cat([kept, more], dim=-1)
        return kept


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether tensors are equal bit for bit, in type and device too."""
    return len(some) == len(others) and all(
        (one.device, one.dtype) == (other.device, other.dtype) and torch.equal(one, other)
        for one, other in zip(some, others, strict=True)
    )


def whole_chunks(length: int) -> int:
    """The length rounded up to chunks."""
    return -(-length // CHUNK) * CHUNK


def chunks(
    parameters: Sequence[Tensor], hold: bool, dtype: torch.dtype, begin: int, end: int
) -> Tensor:
    """Lags from begin to end, multiples of CHUNK, of the kernels: (D, H, end - begin)."""
    _, channels, state_dim = parameters[0].shape
    size = CHUNK << max(0, (end // CHUNK - 1).bit_length())  # a power of two, see `powers`
    elements = BLOCK_ELEMENTS.get(parameters[0].device.type, max(BLOCK_ELEMENTS.values()))
    width = max(1, elements // (2 * state_dim * 4 * INNER))
    result = parameters[-1].new_empty(len(parameters[-1]), channels, end - begin, dtype=dtype)
    for start in range(0, channels, width):
        block = slice(start, start + width)
        c, z = modes(*[parameter[:, block] for parameter in parameters], hold=hold)
        factors = Vandermonde(c, z, size, dtype, INNER)
        for lag in range(begin, end, CHUNK):
            result[:, block, lag - begin : lag - begin + CHUNK] = factors.lags(lag, lag + CHUNK)
    return result


def kept_limit(config: LocostConfig) -> int:
    """Lags that each layer may keep: whole chunks of which all layers' take KEPT_BYTES at most."""
    return min(TRUNCATED_FROM, KEPT_BYTES // (_bytes_per_lag(config) * CHUNK) * CHUNK)


def kept_bytes(config: LocostConfig, length: int) -> int:
    """Bytes that all layers keep, in float32, after documents of a length that is kept."""
    if length > kept_limit(config):
        return 0
    sets = 2 if config.ssm_directions == "separate" else 1
    directions = 1 if config.ssm_directions == "causal" else 2
    numbers = 4 * sets * config.state_dim + 2 * directions * config.state_dim + 1
    copies = 4 * config.encoder_layers * config.d_model * numbers
    return whole_chunks(length) * _bytes_per_lag(config) + copies


def _bytes_per_lag(config: LocostConfig) -> int:
    directions = 1 if config.ssm_directions == "causal" else 2
    return 4 * config.encoder_layers * directions * config.d_model
