"""What a target position attends among the targets: all before it, at once or step by step.

Shapes: R rows, T target positions, A heads, K channels per head.
"""

from dataclasses import dataclass

from torch import Tensor

from .attention import Attention, attend


@dataclass(frozen=True)
class Causal:
    """A whole target, of which each position attends those up to itself."""

    bias: Tensor
    """(A, T, T), -inf where a later position would be attended."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """(R, T, H) -> (R, T, H)."""
        return attention(x, *attention.keys_values(x), self.bias)


@dataclass
class Past:
    """The keys and values that one block's self-attention computed in earlier steps."""

    keys: Tensor
    """(R, A, max_length, K), filled from the front."""
    values: Tensor
    reversed_bias: Tensor
    """(A, max_length): the relative bias from the farthest distance down to 0."""
    length: int = 0
    """Positions held so far."""

    def attend(self, attention: Attention, x: Tensor) -> Tensor:
        """The next position (R, 1, H) -> (R, 1, H); it is part of the past from now on."""
        keys, values = attention.keys_values(x)
        self.keys[:, :, self.length :][:, :, :1] = keys
        self.values[:, :, self.length :][:, :, :1] = values
        self.length += 1
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        bias = self.reversed_bias[:, None, -self.length :]
        return attention.output(attend(attention.queries(x), keys, values, bias))

    def select(self, rows: Tensor) -> None:
        """The past of row i becomes that of row rows[i]."""
        for buffer in (self.keys, self.values):
            buffer[:, :, : self.length] = buffer[rows, :, : self.length]
