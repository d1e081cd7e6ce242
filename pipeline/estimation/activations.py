"""Bytes of the activations of a training step, counted from the sizes.

Formulas rather than a trace of the model: they take no time at any length, and they hold for a GPU
on machines without one, where torch cannot trace CUDA operations. Tests hold them to the tensors
that autograd saves and to measured peaks. n source and m target positions (padded, of the whole
micro-batch), H channels, F inner channels of the feed-forward, I = heads x head_dim, V vocabulary,
w bytes of an element in matrix products. Residuals, norms and the loss are fp32. Of a source that P
processes share (pipeline/model/sequence.py) each holds n / P positions, or H / P channels of all.
"""

from dataclasses import dataclass, replace

from pipeline.model import LocostConfig
from pipeline.model.kept_kernels import BLOCK_ELEMENTS
from pipeline.model.locost import LOSS_CHUNK
from pipeline.model.long_conv import Layout
from pipeline.model.parameter_counts import FP32
from pipeline.model.sharded_attention import BLOCK_SCORES
from pipeline.model.ssm import keeps_spectra
from pipeline.model.vandermonde import levels

COMPLEX128 = 16
MODES_KEPT = 12  # complex128 arrays (D, h, N) in the graph from the kernel's parameters to modes


@dataclass(frozen=True)
class PaddedShape:
    """The shape of a micro-batch: samples, and their padded source and target length in tokens."""

    samples: int
    source: int
    target: int

    @property
    def sources(self) -> int:
        """n."""
        return self.samples * self.source

    @property
    def targets(self) -> int:
        """m."""
        return self.samples * self.target

    def part(self, processes: int) -> "PaddedShape":
        """What one of P processes holds, the source padded to a multiple of P."""
        return replace(self, source=-(-self.source // processes))


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes that a forward pass saves and a backward pass adds, for one way to run the model."""

    config: LocostConfig
    product_bytes: int
    """w: 2 in bf16, 4 in fp32."""
    on_gpu: bool
    """GPUs fuse the norm, keep dropout masks in bytes, and never keep attention weights."""
    recompute: bool = False
    """Gradient checkpointing (activation checkpointing): blocks keep only their inputs."""
    sequence: int = 1
    """P: processes that share each source."""

    def encoder(self, batch: PaddedShape) -> int:
        """Saved by the encoder: its blocks, the final norm and the states (n, H)."""
        tokens, config = self._sources(batch), self.config
        ends = self._norm(tokens) + FP32 * tokens * config.d_model
        ends += 2 * self._mask(tokens * config.d_model, FP32)
        return ends + config.encoder_layers * self._block(self.encoder_block(batch), tokens)

    def encoder_block(self, batch: PaddedShape) -> int:
        """Two norms and their results, keys, convolved keys, queries, gated; the feed-forward; the
        convolution kernels' spectra where they are kept."""
        tokens, config = self._sources(batch), self.config
        mixed = self.product_bytes * tokens * config.d_model * (3 + 3 * self._parts)
        length = self._length(batch)
        size = Layout.of(length, published=config.published_convolution).size
        if keeps_spectra(batch.samples * self._parts, length, size, self.product_bytes, FP32):
            mixed += 2 * FP32 * (size // 2 + 1) * self._channels
        return 2 * self._norm(tokens) + mixed + self._feed_forward(tokens) + self._drops(tokens, 2)

    def decoder(self, batch: PaddedShape) -> int:
        """Saved by the decoder, without the keys and values of the source."""
        tokens, config = batch.targets, self.config
        ends = self._norm(tokens) + self.product_bytes * tokens * config.d_model
        ends += 2 * self._mask(tokens * config.d_model, FP32)
        return ends + config.decoder_layers * self._block(self.decoder_block(batch), tokens)

    def decoder_block(self, batch: PaddedShape) -> int:
        """Three norms and their results, both attentions' queries and contexts, feed-forward."""
        tokens, config = batch.targets, self.config
        inner = tokens * config.num_heads * config.head_dim
        kept = 3 * self._norm(tokens) + 3 * self.product_bytes * tokens * config.d_model
        own = 3 * inner  # queries, keys, values
        if config.positions == "rotary":
            own += 2 * inner
        kept += self._attention_bytes(self._plain_self_attention) * own
        kept += self._attention_bytes(self._plain_cross_attention) * inner
        kept += 2 * self.product_bytes * inner  # contexts
        if self._plain_self_attention:
            kept += self._weights(batch.samples, batch.target, batch.target)
        if self._plain_cross_attention:
            kept += self._weights(batch.samples, batch.target, batch.source)
        if self.sequence > 1:  # what is merged, before it is rounded, and its log-sum-exp
            kept += FP32 * tokens * config.num_heads
            kept += FP32 * inner if self.product_bytes < FP32 else 0
        return kept + self._feed_forward(tokens) + self._drops(tokens, 3)

    def cross_attention(self, batch: PaddedShape) -> int:
        """Saved of the source by the decoder: each block's keys and values, and in bf16 one copy
        of the states."""
        config, tokens = self.config, self._sources(batch)
        inner = config.num_heads * config.head_dim
        one = 2 * tokens * inner * self._attention_bytes(self._plain_cross_attention)
        rounded = 0 if self.product_bytes == FP32 else self.product_bytes * tokens * config.d_model
        return rounded + one * (1 if self.recompute else config.decoder_layers)

    def logits(self, batch: PaddedShape) -> int:
        """In the loss's backward pass: logits, log-probabilities, gradients of both, fp32; of one
        chunk of target positions."""
        positions = min(batch.targets, LOSS_CHUNK)
        return positions * self.config.vocab_size * (self.product_bytes + 3 * FP32)

    def attention_backward(self, batch: PaddedShape) -> int:
        """Added by a decoder block's backward pass: gradients of the attention weights, where
        they exist, or of the feed-forward; the block's activations, if recomputed. Of a shared
        source: by flash attention (bf16 on a GPU) keys and values without padding, else some of
        the scores and their gradients, with dropout twice as many."""
        longest = max(
            batch.target if self._plain_self_attention else 0,
            batch.source if self._plain_cross_attention else 0,
        )
        scores = batch.samples * self.config.num_heads * batch.target * longest
        again = self.decoder_block(batch) if self.recompute else 0
        packed = 0
        if self.sequence > 1 and self.on_gpu and self.product_bytes < FP32:
            inner = self.config.num_heads * self.config.head_dim
            packed = 2 * self.product_bytes * self._sources(batch) * inner
        elif self.sequence > 1:
            merged = self.config.num_heads * batch.samples * batch.target * self._length(batch)
            block = min(BLOCK_SCORES[self._device], merged // self.sequence)
            scores = max(scores, block * (2 if self.config.dropout else 1))
        dense = 2 * self.product_bytes * batch.targets * self.config.d_ff
        return max(2 * FP32 * scores, packed, dense) + again

    def feed_forward_backward(self, batch: PaddedShape) -> int:
        """Added by the backward pass of the last encoder block's feed-forward: gradients of states
        and residual stream, and of both projections; the block's activations, if recomputed."""
        tokens = self._sources(batch)
        again = self.encoder_block(batch) if self.recompute else 0
        gradients = 2 * FP32 * tokens * self.config.d_model
        return again + gradients + 2 * self.product_bytes * tokens * self.config.d_ff

    def convolution_backward(self, batch: PaddedShape) -> tuple[int, int]:
        """Added by its convolution's backward pass: (gradients less what has been freed by then,
        its result and the buffers of kernel and FFT)."""
        tokens, channels = self._sources(batch), self.config.d_model
        again = self.encoder_block(batch) if self.recompute else 0
        gradients = 2 * FP32 * tokens * channels
        freed = self._feed_forward(tokens) + self._norm(tokens)
        freed += 3 * self.product_bytes * tokens * channels  # normed, gated, queries
        result = self.product_bytes * tokens * channels * self._parts
        return again + gradients - freed, result + self.ssm_buffers(batch)

    def exchange(self, batch: PaddedShape) -> int:
        """Added to the convolution's input and gradient while positions are exchanged for channels:
        what is sent, and what comes. 0 where no process shares the source."""
        if self.sequence == 1:
            return 0
        elements = self._sources(batch) * self.config.d_model * self._parts
        return 2 * self.product_bytes * elements

    def ssm_buffers(self, batch: PaddedShape) -> int:
        """For one block of channels: the kernel's two-level factors, plus the larger of the
        spectra and the factors' gradients. Letters as in pipeline/model/ssm.py."""
        config = self.config
        length = self._length(batch)
        inner, outer = levels(length)
        size = Layout.of(length).size
        rows = batch.samples * self._parts
        sets = 2 if config.ssm_directions == "separate" else 1
        directions = 1 if config.ssm_directions == "causal" else 2
        per_set = directions // sets
        pairs = 2 * config.state_dim
        width = max(rows * size, pairs * (inner + 2 * outer))
        block = min(self._channels, max(1, BLOCK_ELEMENTS[self._device] // width))
        factors = sets * pairs * (inner + (per_set + 1) * outer)
        spectra = (4 * rows + 4) * size
        gradients = sets * pairs * (inner + per_set * outer + max(inner, outer))
        gradients += 3 * directions * inner * outer
        modes = COMPLEX128 * MODES_KEPT * directions * config.state_dim
        return block * (FP32 * (factors + max(spectra, gradients)) + modes)

    @property
    def _device(self) -> str:
        return "cuda" if self.on_gpu else "cpu"

    @property
    def _parts(self) -> int:
        """Real convolutions of each channel."""
        return 2 if self.config.ssm_projections == "complex" else 1

    @property
    def _channels(self) -> int:
        """H / P: those that a process convolves."""
        return self.config.d_model // self.sequence

    def _sources(self, batch: PaddedShape) -> int:
        """n / P: the positions that a process holds."""
        return batch.part(self.sequence).sources

    def _length(self, batch: PaddedShape) -> int:
        """Of the convolution: the source padded to a multiple of P."""
        return batch.part(self.sequence).source * self.sequence

    @property
    def _plain_self_attention(self) -> bool:
        """Written out: torch's fused CPU kernels take no bias with gradients, and no dropout."""
        return not self.on_gpu and (self.config.positions == "relative" or self.config.dropout > 0)

    @property
    def _plain_cross_attention(self) -> bool:
        return not self.on_gpu and self.config.dropout > 0 and self.sequence == 1

    def _attention_bytes(self, plain: bool) -> int:
        """Bytes of an element: attention written out computes in fp32."""
        return FP32 if plain else self.product_bytes

    def _weights(self, samples: int, queries: int, keys: int) -> int:
        """Attention weights; with dropout also the mask and the remaining weights."""
        copies = 3 if self.config.dropout else 1
        return FP32 * samples * self.config.num_heads * queries * keys * copies

    def _block(self, kept: int, tokens: int) -> int:
        return FP32 * tokens * self.config.d_model if self.recompute else kept

    def _norm(self, tokens: int) -> int:
        """Its input, fp32; on a CPU the normalised input as well."""
        return FP32 * tokens * (self.config.d_model * (1 if self.on_gpu else 2) + 1)

    def _feed_forward(self, tokens: int) -> int:
        """Both projections, in fp32 the gate, their product, and its dropout mask."""
        inner = tokens * self.config.d_ff
        kept = 3 if self.product_bytes < FP32 else 4
        return kept * self.product_bytes * inner + self._mask(inner, self.product_bytes)

    def _drops(self, tokens: int, count: int) -> int:
        """Dropout masks of the residual sub-layers."""
        return count * self._mask(tokens * self.config.d_model, self.product_bytes)

    def _mask(self, elements: int, width: int) -> int:
        """A dropout mask: a byte an element on a GPU, a number of the activations' type else."""
        if not self.config.dropout:
            return 0
        return elements * (1 if self.on_gpu else width)
