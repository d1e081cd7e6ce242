"""Next-token logits, one target position after another.

Shapes: R rows (beams of documents), H = d_model, V vocabulary.
"""

from typing import Protocol

from torch import Tensor, nn

from .config import LocostConfig
from .decoder import Decoder, DecoderState
from .layers import at_least_fp32


class Generator(Protocol):
    """What generation needs of a model; Locost has it."""

    config: LocostConfig
    embedding: nn.Embedding
    decoder: Decoder
    head: nn.Linear | None
    """None: the embedding."""

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Source ids (B, L) and their mask -> encoder states (B, L, H)."""
        ...

    def project(self, x: Tensor) -> Tensor:
        """Decoder output (..., H) -> logits (..., V)."""
        ...


class Steps(Protocol):
    """The positions of R rows, in order."""

    patience: int
    """Steps from one look at whether all rows have ended to the next: a look waits for the device,
    which a faster step makes dearer. Steps beyond the end change no result."""

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits (R, V), at least float32, of what follows the tokens (R, 1); valid until the next
        call. Raises ValueError if those of the first position are not finite."""
        ...

    def select(self, rows: Tensor) -> None:
        """Row i continues from row rows[i], a beam of the same document."""
        ...


class PlainSteps:
    """Steps as the decoder defines them: only what has been written is attended."""

    patience = 1

    def __init__(self, model: Generator, state: DecoderState) -> None:
        self.model, self.state = model, state
        self.first = True

    def logits(self, tokens: Tensor) -> Tensor:
        """See `Steps`."""
        step = self.model.decoder.step(self.model.embedding(tokens), self.state)
        logits = self.model.project(step[:, -1])
        if self.first and not logits.isfinite().all():
            raise ValueError(
                "the model gives logits that are not finite: its weights hold NaN or overflow; "
                "give a checkpoint of finite weights, or precision fp32"
            )
        self.first = False
        return logits.to(at_least_fp32(logits.dtype))

    def select(self, rows: Tensor) -> None:
        """See `Steps`."""
        self.state.select(rows)
