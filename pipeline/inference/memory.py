"""The memory needed to summarise one document, and the choice of a plan that fits.

Letters as in `pipeline.estimation.activations`: n source positions, H channels, w bytes per
element in matrix products. The residual stream is fp32.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from pipeline.common.units import GIB
from pipeline.model import LocostConfig
from pipeline.model.encoder import TOKEN_BLOCK
from pipeline.model.generation import DecodingStrategy
from pipeline.model.kept_kernels import BLOCK_ELEMENTS, kept_bytes
from pipeline.model.long_conv import Layout
from pipeline.model.parameter_counts import FP32, ParameterCounts
from pipeline.model.vandermonde import levels

TOKEN_BLOCKS = (TOKEN_BLOCK, TOKEN_BLOCK // 4, TOKEN_BLOCK // 16)
"""Block sizes to choose from: smaller ones save too little memory for their extra time."""
OVERHEAD = 256 << 20
"""Libraries loaded by the first products and FFTs, and fragmentation of the allocator."""


@dataclass(frozen=True)
class ReadingPlan:
    """How a document is read, and the memory that takes in addition to the model."""

    token_block: int
    """Positions that the encoder computes together."""
    cached: bool
    """Whether cross-attention caches keys and values, or attends the encoder states."""
    source: int
    """Bytes that cross-attention holds: all keys and values, or one copy of the states."""
    kernels: int
    """Bytes of convolution kernels kept for later documents; 0: none are."""
    peak: int
    """Peak bytes, without the model and the kernels kept before."""

    def describe(self) -> str:
        """The plan in one line."""
        form = "cached" if self.cached else "absorbed"
        return f"blocks of {self.token_block:,} tokens, cross-attention {form}"


@dataclass(frozen=True)
class DocumentMemory:
    """The memory needed to summarise a source of `tokens` tokens with a model."""

    config: LocostConfig
    tokens: int
    strategy: DecodingStrategy
    product_bytes: int
    """w: 2 in bf16, 4 in fp32."""
    on_gpu: bool
    kept: int = 0
    """Bytes of convolution kernels kept from earlier documents."""
    processes: int = 1
    """Those that share the source: the memory is that of each."""

    @property
    def part(self) -> int:
        """Positions that a process has."""
        return -(-self.tokens // self.processes)

    def choose_plan(self, held: int, limit: int, cache: int) -> ReadingPlan:
        """The fastest plan with which a process that holds `held` bytes stays within `limit` bytes.

        `held` is without the kernels kept so far, which a plan may drop.
        Keys and values are cached only where they take at most `cache` bytes. Raises ValueError
        with the minimum needed where no plan fits.
        """
        for plan in self._plans():
            if held + plan.peak <= limit and (not plan.cached or plan.source <= cache):
                return plan
        raise ValueError(
            f"{self.tokens:,} tokens need at least {(held + plan.peak) / GIB:.2f} GiB, "
            f"{held / GIB:.2f} of it already held, but the limit is {limit / GIB:.2f}"
        )

    def remedies(self, held: int, limit: int) -> str:
        """The options, of those that reduce memory, with which `choose_plan` finds a plan."""
        narrow = replace(self, product_bytes=2)
        options = []
        if self.product_bytes > narrow.product_bytes and narrow.fits(held, limit):
            options.append("--precision bf16")
        if length := self._longest(held, limit):
            options.append(f"--source_length {length}")
        if not options and (length := narrow._longest(held, limit)):
            options.append(f"--precision bf16 --source_length {length}")
        if not options:
            return "no text of any length fits: give more memory or a smaller model"
        return f"it fits with {' or '.join(options)}"

    def fits(self, held: int, limit: int) -> bool:
        """Whether some plan stays within `limit` bytes."""
        return any(held + plan.peak <= limit for plan in self._plans())

    def _longest(self, held: int, limit: int) -> int:
        """The longest source that fits, rounded down to two digits; 0 where none does."""
        lengths = range(2, self.tokens)
        count = bisect_left(
            lengths, True, key=lambda tokens: not replace(self, tokens=tokens).fits(held, limit)
        )
        longest = count + 1 if count else 0
        digits = max(len(str(longest)) - 2, 0)
        return longest // 10**digits * 10**digits

    def _plans(self) -> Iterator[ReadingPlan]:
        """All plans, fastest first, smallest last."""
        common = OVERHEAD
        if self.product_bytes < FP32:  # autocast keeps the weights in bf16
            common += self.product_bytes * _products(self.config)
        kernels = kept_bytes(self.config, self.part * self.processes) // self.processes
        kernels_kept = max(self.kept, kernels)
        for cached in (True, False):
            for block in TOKEN_BLOCKS:
                peak = max(self._encoding(block), self._decoding(cached)) + common
                for kernels in sorted({kernels_kept, 0}, reverse=True):
                    yield ReadingPlan(block, cached, self._source(cached), kernels, peak + kernels)

    def _encoding(self, block: int) -> int:
        """The embedded source, kept throughout; the residual stream with the convolution's input,
        overwritten by its output, and either its work (or what is sent and received before and
        after it) or the stream's next state and the work on one block."""
        config, w = self.config, self.product_bytes
        stream = self.part * config.d_model
        parts = 2 if config.ssm_projections == "complex" else 1
        exchange = 2 * parts * w * stream if self.processes > 1 else 0
        convolving = stream * (2 * FP32 + parts * w) + max(self._convolution(), exchange)
        # the feed-forward's two projections, gate and product, and three norms
        work = min(block, self.part) * (4 * w * config.d_ff + 4 * FP32 * config.d_model)
        mixing = stream * (3 * FP32 + parts * w) + work
        return max(convolving, mixing)

    def _convolution(self) -> int:
        """One block of channels: the kernel's two factors, then spectra, for a kernel as long as
        the input. See pipeline/model/ssm.py for the letters."""
        config = self.config
        inner, outer = levels(self.tokens)
        size = Layout.of(self.tokens).size
        rows = 2 if config.ssm_projections == "complex" else 1
        sets = 2 if config.ssm_directions == "separate" else 1
        pairs = 2 * config.state_dim
        limit = BLOCK_ELEMENTS["cuda" if self.on_gpu else "cpu"]
        width = max(rows * size, pairs * (inner + 2 * outer))
        channels = min(config.d_model // self.processes, max(1, limit // width))
        factors = sets * pairs * (inner + 2 * outer) + 2 * inner * outer
        return FP32 * channels * max(factors, (2 * rows + 4) * size)

    def _decoding(self, cached: bool) -> int:
        """At its start: encoder states, in bf16 with a copy; keys and values where cached. Of a
        shared source, each block's are widened in turn."""
        states, narrow = self.part * self.config.d_model, self.product_bytes < FP32
        kept = FP32 * states + self.product_bytes * states * narrow
        wide = self._source(True) * FP32 // (self.product_bytes * self.config.decoder_layers)
        widened = wide if cached and narrow and self.processes > 1 else 0
        return kept + (self._source(True) if cached else 0) + self._past() + widened

    def _source(self, cached: bool) -> int:
        config = self.config
        inner = 2 * config.decoder_layers * config.num_heads * config.head_dim
        return self.part * self.product_bytes * (inner if cached else config.d_model)

    def _past(self) -> int:
        """Keys and values of self-attention, of beams with the copy in which they change places,
        and one step's scores over the vocabulary."""
        config, rows = self.config, self.strategy.num_beams
        inner = 2 * config.decoder_layers * config.num_heads * config.head_dim
        past = rows * self.strategy.max_new_tokens * inner * self.product_bytes
        return past * (1 if rows == 1 else 2) + 8 * FP32 * rows * config.vocab_size


@cache
def _products(config: LocostConfig) -> int:
    """Parameters of matrix products: counting builds the model, and a search asks often."""
    return ParameterCounts.of(config).products
