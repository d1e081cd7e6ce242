"""The whole model: embedding, encoder, decoder, head."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import LocostConfig
from .decoder import Decoder, DecoderState
from .encoder import Encoder
from .generation import DecodingStrategy, generate
from .layers import Block, at_least_fp32
from .ssm import KERNEL_PARAMETERS, BidirectionalSSM

IGNORED = -100
"""The label of a target position that has no loss."""


class LocostOutput(NamedTuple):
    """What a forward pass gives; without labels only the encoder states."""

    loss: Tensor | None
    """Cross-entropy of the labels, a scalar of at least float32."""
    logits: Tensor | None
    """(B, T, V)."""
    encoder_states: Tensor
    """(B, L, H)."""


class Locost(nn.Module):
    """LOCOST, a state-space encoder with a transformer decoder.

    Shapes: B batch, L source and T target positions, H = d_model, V = vocab_size.
    """

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

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
    ) -> LocostOutput:
        """Teacher-forced pass over a source (B, L) and, if given, its labels (B, T).

        The mask (B, L) is 1 at real source positions, 0 at padding; None means all real. Labels
        of -100 have no loss, which is the mean (or the sum) over all others. Raises ValueError
        naming the argument that is impossible.
        """
        check_inputs(self.config, input_ids, attention_mask, labels, loss_reduction == "mean")
        states = self.encode(input_ids, attention_mask)
        if labels is None:
            return LocostOutput(None, None, states)
        targets = self.embedding(shift_right(self.config, labels))
        logits = self.project(self.decoder(targets, states, attention_mask))
        return LocostOutput(target_loss(logits, labels, loss_reduction), logits, states)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Source ids (B, L) and their mask -> encoder states (B, L, H)."""
        return self.encoder(self.embedding(input_ids), attention_mask)

    def project(self, x: Tensor) -> Tensor:
        """Decoder output (..., H) -> logits (..., V); scaled only where the embedding is tied."""
        if self.head is not None:
            return self.head(x)
        return functional.linear(x * self.config.d_model**-0.5, self.embedding.weight)

    def recompute_activations(self, recompute: bool = True) -> None:
        """Whether blocks keep only their inputs for the backward pass: less memory, one more
        forward pass."""
        for block in self._blocks():
            block.recompute = recompute

    def compile_blocks(self, **options: Any) -> None:
        """Compile every block by torch.compile with the options; the parameters' names stay.

        The convolutions are left out: a compiler would fuse nothing in complex numbers and FFTs.
        """
        for module in self.modules():
            if isinstance(module, BidirectionalSSM):
                convolution = torch.compiler.disable(module.convolution)
                module.convolution = convolution  # type: ignore[method-assign]
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
        top_p: float | None = None,
        temperature: float = 1.0,
        no_repeat_ngram_size: int = 0,
        seed: int = 0,
        memory_budget: int | None = None,
        started: Callable[[DecoderState], None] | None = None,
    ) -> Tensor:
        """New ids for each source (B, L), its mask (B, L) or None -> (B, 1 + T), start token first.

        By default the likeliest next token, again and again; see `DecodingStrategy` for beam
        search, sampling and the rules. A row ends with EOS and is padded from there; T is the
        longest row's, at most `max_new_tokens`. `started` is called once, when the sources are
        encoded, with the state that decoding begins from. Dropout is off meanwhile, the global
        random state is not touched. Raises ValueError naming the argument that is impossible.
        """
        check_inputs(self.config, input_ids, attention_mask)
        strategy = DecodingStrategy(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            num_beams=num_beams,
            length_penalty=length_penalty,
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
    of -100 have none."""
    return functional.cross_entropy(
        logits.flatten(0, 1).to(at_least_fp32(logits.dtype)),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction=reduction,
    )


def shift_right(config: LocostConfig, labels: Tensor) -> Tensor:
    """The decoder's input (B, T): the start token, then all labels but the last, -100 as pad."""
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


def check_inputs(
    config: LocostConfig,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    labels: Tensor | None = None,
    needs_target: bool = False,
) -> None:
    """Refuse impossible inputs with a ValueError that names the argument.

    `needs_target`: labels that are all ignored have no mean loss, but a sum. Values are looked at
    in one transfer from the device.
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


def _outside(config: LocostConfig, ids: Tensor) -> Tensor:
    return (ids < 0) | (ids >= config.vocab_size)
