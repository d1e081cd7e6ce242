"""What summarising one document takes in memory, and the way of doing it that fits.

Letters as in `pipeline.estimation.activations`: n source positions, H channels, w bytes of an
element in matrix products. The residual stream is fp32.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.estimation.activations import FP32
from pipeline.estimation.memory import Parameters
from pipeline.model import LocostConfig
from pipeline.model.encoder import TOKEN_BLOCK
from pipeline.model.generation import DecodingStrategy
from pipeline.model.long_conv import Layout
from pipeline.model.ssm import BLOCK_ELEMENTS, levels

GIB = 2**30
TOKEN_BLOCKS = (TOKEN_BLOCK, TOKEN_BLOCK // 4, TOKEN_BLOCK // 16)
"""Sizes to choose from: smaller ones save too little to be worth their time."""
OVERHEAD = 256 << 20
"""Libraries that the first products and FFTs load, and what the allocator keeps between arrays."""


@dataclass(frozen=True)
class Way:
    """How a document is read and what that takes beside the model."""

    token_block: int
    """Positions that the encoder computes together."""
    cached: bool
    """Whether the cross-attention's keys and values are kept, or the encoder states attended."""
    source: int
    """Bytes of what is attended: all keys and values, or one copy of the states."""
    peak: int
    """Bytes at the highest moment, over those of the model."""

    def describe(self) -> str:
        """The choice in a line."""
        form = "cached" if self.cached else "absorbed"
        return f"blocks of {self.token_block:,} tokens, cross-attention {form}"


@dataclass(frozen=True)
class Document:
    """A source of so many tokens for a model, and how it is summarised."""

    config: LocostConfig
    tokens: int
    strategy: DecodingStrategy
    product_bytes: int
    """w: 2 in bf16, 4 in fp32."""
    on_gpu: bool

    def way(self, held: int, limit: int, cache: int) -> Way:
        """The fastest way by which a process that holds `held` bytes never holds more than `limit`,
        with keys and values cached where those take at most `cache`.

        Raises ValueError with what is needed at least, where none does.
        """
        for way in self._ways():
            if held + way.peak <= limit and (not way.cached or way.source <= cache):
                return way
        raise ValueError(
            f"{self.tokens:,} tokens need {(held + way.peak) / GIB:.2f} GiB at least, "
            f"{held / GIB:.2f} of them held already, and {limit / GIB:.2f} may be taken"
        )

    def _ways(self) -> Iterator[Way]:
        """Fastest first, the least memory last."""
        common = OVERHEAD
        if self.product_bytes < FP32:  # autocast keeps the weights in bf16
            common += self.product_bytes * Parameters.of(self.config).products
        for cached in (True, False):
            for block in TOKEN_BLOCKS:
                peak = max(self._encoding(block), self._decoding(cached)) + common
                yield Way(block, cached, self._source(cached), peak)

    def _encoding(self, block: int) -> int:
        """The embedded source, which stays; the residual stream and either the convolution's input,
        output and channels, or the stream's next state; and the work on a block."""
        config, w = self.config, self.product_bytes
        stream = self.tokens * config.d_model
        parts = 2 if config.ssm_projections == "complex" else 1
        convolving = stream * (2 * FP32 + (2 + parts) * parts * w) + self._convolution()
        # of the feed-forward: both projections, the gate and the product; beside it three norms
        work = min(block, self.tokens) * (4 * w * config.d_ff + 4 * FP32 * config.d_model)
        mixing = stream * (3 * FP32 + parts * w) + work
        return max(convolving, mixing)

    def _convolution(self) -> int:
        """Of one block of channels: the kernel's two factors, then spectra, if the kernel is as
        long as the input. See pipeline/model/ssm.py for the letters."""
        config = self.config
        inner, outer = levels(self.tokens)
        size = Layout.of(self.tokens).size
        rows = 2 if config.ssm_projections == "complex" else 1
        sets = 2 if config.ssm_directions == "separate" else 1
        pairs = 2 * config.state_dim
        limit = BLOCK_ELEMENTS["cuda" if self.on_gpu else "cpu"]
        width = max(rows * size, pairs * (inner + 2 * outer))
        channels = min(config.d_model, max(1, limit // width))
        factors = sets * pairs * (inner + 2 * outer) + 2 * inner * outer
        return FP32 * channels * max(factors, (2 * rows + 4) * size)

    def _decoding(self, cached: bool) -> int:
        """At its start: encoder states, and in bf16 once more; keys and values, where cached."""
        states = self.tokens * self.config.d_model
        kept = FP32 * states + self.product_bytes * states * (self.product_bytes < FP32)
        return kept + (self._source(True) if cached else 0) + self._past()

    def _source(self, cached: bool) -> int:
        config = self.config
        inner = 2 * config.decoder_layers * config.num_heads * config.head_dim
        return self.tokens * self.product_bytes * (inner if cached else config.d_model)

    def _past(self) -> int:
        """The targets' own keys and values, and a step's scores over the vocabulary."""
        config, rows = self.config, self.strategy.num_beams
        inner = 2 * config.decoder_layers * config.num_heads * config.head_dim
        past = rows * self.strategy.max_new_tokens * inner * self.product_bytes
        return past + 8 * FP32 * rows * config.vocab_size
