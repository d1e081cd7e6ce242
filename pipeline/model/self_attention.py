"""What a target position attends among the targets: all before it, at once or step by step.

Shapes: R rows, T target positions, H = d_model, A heads, K channels per head.
"""

from dataclasses import dataclass

from torch import Tensor

from .attention import Attention, attend, rotate
from .attention_backends import Backend, equal_bounds, flash_attend


@dataclass(frozen=True)
class Causal:
    """A whole target, of which each position attends those up to itself.

    Positions are known by a bias, or by rotation and nothing else.
    """

    bias: Tensor | None
    """(A, T, T), -inf where a later position would be attended."""
    rotation: Tensor | None
    """(T, K / 2, 2): cosine and sine of each position."""
    backend: Backend = "sdpa"
    """Only torch's takes a bias."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(R, T, H) -> (R, T, H)."""
        queries, keys, values = project(attention, x, self.rotation)
        if self.backend == "sdpa" or self.bias is not None:
            causal, dropout = self.bias is None, attention.drop
            return attention.output(attend(queries, keys, values, self.bias, causal, dropout))
        bounds = equal_bounds(x.shape[0], x.shape[1], x.device)
        queries, keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (queries, keys, values))
        context = flash_attend(queries, keys, values, bounds, bounds, True, attention.drop)
        return attention.o(context.flatten(1)).view(x.shape)


@dataclass
class Past:
    """The keys and values that one block's self-attention computed in earlier steps."""

    keys: Tensor
    """(R, A, max_length, K), filled from the front."""
    values: Tensor
    reversed_bias: Tensor | None
    """(A, max_length): the relative bias from the farthest distance down to 0."""
    rotation: Tensor | None
    """(max_length, K / 2, 2): cosine and sine of each position."""
    length: int = 0
    """Positions held so far."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """The next position (R, 1, H) -> (R, 1, H); it belongs to the past from now on."""
        now = slice(self.length, self.length + 1)
        rotation = None if self.rotation is None else self.rotation[now]
        queries, self.keys[:, :, now], self.values[:, :, now] = project(attention, x, rotation)
        self.length += 1
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        bias = None if self.reversed_bias is None else self.reversed_bias[:, None, -self.length :]
        return attention.output(attend(queries, keys, values, bias, dropout=attention.drop))

    def select(self, rows: Tensor) -> None:
        """The past of row i becomes that of row rows[i]."""
        for buffer in (self.keys, self.values):
            buffer[:, :, : self.length] = buffer[rows, :, : self.length]


def project(
    attention: Attention, x: Tensor, rotation: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (R, A, T, K) of x (R, T, H), the first two rotated."""
    queries, (keys, values) = attention.queries(x), attention.keys_values(x)
    if rotation is None:
        return queries, keys, values
    return rotate(queries, rotation), rotate(keys, rotation), values
