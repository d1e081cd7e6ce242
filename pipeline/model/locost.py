"""The whole model: embedding, encoder, decoder, head."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .config import LocostConfig
from .decoder import Decoder, DecoderState
from .encoder import Encoder
from .generation import DecodingStrategy, EarlyStopping, generate
from .layers import Block, at_least_fp32
from .sequence import ALONE, SequenceGroup, check_sequence, own_part
from .ssm import KERNEL_PARAMETERS, BidirectionalSSM, ssm_layers

IGNORED = -100
"""The label of target positions that are excluded from the loss."""
LOSS_CHUNK = 2048
"""Target positions whose logits exist at one time, where only the loss is wanted."""


class LocostOutput(NamedTuple):
    """Result of a forward pass; without labels only the encoder states."""

    loss: Tensor | None
    """Cross-entropy of the labels, a scalar of at least float32."""
    logits: Tensor | None
    """(B, T, V)."""
    encoder_states: Tensor
    """(B, L, H), of the own part where processes share the source."""


class Locost(nn.Module):
    """LOCOST, a state-space encoder with a transformer decoder.

    Shapes: B batch, L source and T target positions, H = d_model, V = vocab_size.
    """

    loss_chunk = LOSS_CHUNK

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.head = (
            None
            if config.tie_embeddings
            else nn.Linear(config.d_model, config.vocab_size, bias=False)
        )
        self.sequence: SequenceGroup = ALONE
        """The processes that share each source."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
        loss_only: bool = False,
        check: bool = True,
    ) -> LocostOutput:
        """Teacher-forced pass over a source (B, L) and, if given, its labels (B, T).

        The mask (B, L) is 1 at real source positions, 0 at padding; None means all real. The loss
        is the mean (or the sum) over all labels except -100. `loss_only`: no logits, which the loss
        then computes in chunks and again in the backward pass. `check`: raise ValueError naming an
        impossible argument; on a GPU that waits for it, so check before the transfer there.
        """
        if check:
            check_inputs(self.config, input_ids, attention_mask, labels, loss_reduction == "mean")
        input_ids, attention_mask = own_part(input_ids, attention_mask, self.sequence)
        states = self.encode(input_ids, attention_mask)
        if labels is None:
            return LocostOutput(None, None, states)
        targets = self.embedding(shift_right(self.config, labels))
        decoded = self.decoder(targets, states, attention_mask)
        if loss_only:
            loss = chunked_loss(self.project, decoded, labels, loss_reduction, self.loss_chunk)
            return LocostOutput(loss, None, states)
        logits = self.project(decoded)
        return LocostOutput(target_loss(logits, labels, loss_reduction), logits, states)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Source ids (B, L) and their mask -> encoder states (B, L, H).

        All three are of the own part where processes share the source; see `own_part`.
        """
        return self.encoder(self.embedding(input_ids), attention_mask)

    def project(self, x: Tensor) -> Tensor:
        """Decoder output (..., H) -> logits (..., V); scaled only if the embedding is tied."""
        if self.head is not None:
            return self.head(x)
        return functional.linear(x * self.config.d_model**-0.5, self.embedding.weight)

    def attention_kernels(self) -> dict[str, str]:
        """What computes the mixing of positions, in words, by part: encoder, decoder, cross."""
        return {"encoder": "state-space, FFT", **self.decoder.attention_kernels()}

    def use_sequence(self, group: SequenceGroup) -> None:
        """Share every source with the processes of a group, from now on: they all call the model
        with the same batches, and with the same state of torch's random numbers.

        Raises ValueError for a number of processes that the model cannot have.
        """
        check_sequence(self.config, group.size)
        for layer in ssm_layers(self):
            layer.sequence = group
            layer.kept.forget()  # those of other channels
        self.sequence = self.encoder.sequence = self.decoder.sequence = group

    def recompute_activations(self, recompute: bool = True) -> None:
        """Switch gradient checkpointing (activation checkpointing): blocks keep only their inputs
        for the backward pass and recompute the rest. Less memory, one more forward pass."""
        for block in self._blocks():
            block.recompute = recompute

    def compile_blocks(self, **options: Any) -> None:
        """Compile every block with torch.compile; parameter names stay the same.

        `dynamic=True`: once for all shapes, and once more for batches of one.

        The convolutions are excluded: the compiler fuses nothing in complex numbers and FFTs. So is
        attention to a shared source, which communicates.
        """
        self.decoder.merged = torch.compiler.disable(self.decoder.merged)
        for layer in ssm_layers(self):
            convolution = torch.compiler.disable(layer.convolution)
            layer.convolution = convolution  # type: ignore[method-assign]
        for block in self._blocks():
            block.compile(**options)

    def _blocks(self) -> list[Block]:
        return [module for module in self.modules() if isinstance(module, Block)]

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        max_new_tokens: int = 512,
        min_new_tokens: int = 0,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = True,
        top_p: float | None = None,
        temperature: float = 1.0,
        no_repeat_ngram_size: int = 0,
        seed: int = 0,
        memory_budget: int | None = None,
        started: Callable[[DecoderState], None] | None = None,
    ) -> Tensor:
        """New ids for each source (B, L), its mask (B, L) or None -> (B, 1 + T), start token first.

        Greedy by default; see `DecodingStrategy` for beam search, sampling and constraints. A row
        ends with EOS and is padded after it; T is the longest row's, at most `max_new_tokens`.
        `started` is called once with the initial decoder state, after the sources are encoded.
        Dropout is off, and the global random state is not used. Raises ValueError naming an
        impossible argument.
        """
        check_inputs(self.config, input_ids, attention_mask)
        strategy = DecodingStrategy(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            num_beams=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            top_p=top_p,
            temperature=temperature,
            no_repeat_ngram_size=no_repeat_ngram_size,
            seed=seed,
            memory_budget=memory_budget,
        )
        was_training = self.training
        self.eval()
        try:
            return generate(self, input_ids, attention_mask, strategy, started)
        finally:
            self.train(was_training)


def target_loss(
    logits: Tensor, labels: Tensor, reduction: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Cross-entropy of labels (B, T) under logits (B, T, V), a scalar of at least float32; labels
    of -100 are ignored."""
    return functional.cross_entropy(
        logits.flatten(0, 1).to(at_least_fp32(logits.dtype)),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction=reduction,
    )


def chunked_loss(
    project: Callable[[Tensor], Tensor],
    decoded: Tensor,
    labels: Tensor,
    reduction: Literal["mean", "sum"],
    size: int,
) -> Tensor:
    """`target_loss` of the projection of decoder outputs (B, T, H), `size` positions at once.

    The logits of several chunks are computed again in the backward pass.
    """

    def loss_of(x: Tensor, targets: Tensor) -> Tensor:
        return target_loss(project(x)[None], targets[None], "sum")

    rows, targets = decoded.flatten(0, 1), labels.flatten()
    chunks = zip(rows.split(size), targets.split(size), strict=True)
    if len(rows) <= size or not torch.is_grad_enabled():
        losses = [loss_of(*chunk) for chunk in chunks]
    else:
        losses = [checkpoint(loss_of, *chunk, use_reentrant=False) for chunk in chunks]
    total = torch.stack(losses).sum()
    return total if reduction == "sum" else total / (labels != IGNORED).sum()


def shift_right(config: LocostConfig, labels: Tensor) -> Tensor:
    """The decoder's input (B, T): the start token, then all labels but the last; pad for -100."""
    start = labels.new_full((labels.shape[0], 1), config.start_id)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORED, config.pad_id)


def ssm_parameter_names(model: nn.Module) -> set[str]:
    """Names of the state-space kernels' parameters, for an optimizer group of their own."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, BidirectionalSSM)
        for name in KERNEL_PARAMETERS
    }


class Vocabulary(Protocol):
    """What `check_inputs` needs of a model's configuration."""

    @property
    def vocab_size(self) -> int:
        """V."""
        ...


def check_inputs(
    config: Vocabulary,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    labels: Tensor | None = None,
    needs_target: bool = False,
) -> None:
    """Raise ValueError naming an impossible argument.

    `needs_target`: refuse labels that are all ignored, which have no mean loss (but a sum). One
    transfer from the device.
    """
    for name, ids in (("input_ids", input_ids), ("labels", labels)):
        if ids is not None and (ids.dim() != 2 or 0 in ids.shape):
            raise ValueError(f"{name}: shape {tuple(ids.shape)}; give (batch, length), none 0")
    if labels is not None and len(labels) != len(input_ids):
        raise ValueError(f"labels: {len(labels)} rows for {len(input_ids)} of input_ids")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask: shape {tuple(attention_mask.shape)}; give that of input_ids, "
            f"{tuple(input_ids.shape)}"
        )
    outside = [_outside(config, input_ids).any()]
    if labels is not None:
        ignored = labels == IGNORED
        outside += [(_outside(config, labels) & ~ignored).any(), ignored.all()]
    if attention_mask is not None:
        outside.append(~attention_mask.bool().any(1).all())
    flags = torch.stack(outside).tolist()
    allowed = f"give ids from 0 to {config.vocab_size - 1}"
    if flags[0]:
        raise ValueError(f"input_ids: an id is outside the vocabulary; {allowed}")
    if labels is not None and flags[1]:
        raise ValueError(f"labels: an id is outside the vocabulary; {allowed}, or {IGNORED}")
    if labels is not None and flags[2] and needs_target:
        raise ValueError(f"labels: all are {IGNORED}; give at least one target")
    if attention_mask is not None and flags[-1]:
        raise ValueError("attention_mask: a row is all zero; leave out rows without real tokens")


def _outside(config: Vocabulary, ids: Tensor) -> Tensor:
    return (ids < 0) | (ids >= config.vocab_size)
