"""The model of an exported folder, for transformers: Locost with its interface.

Runs inside that folder, next to the modules of `pipeline/model` that it imports.
Shapes: B batch, L source and T target positions, H = d_model, V = vocab_size.
"""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from .configuration_locost import LocostPretrainedConfig
from .decoder import DecoderState
from .locost import Locost, check_inputs, shift_right, target_loss
from .ssm import KERNEL_PARAMETERS


class LocostForConditionalGeneration(PreTrainedModel, GenerationMixin):
    """LOCOST for transformers' `generate` and trainer."""

    config_class = LocostPretrainedConfig
    base_model_prefix = "locost"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    gradient_checkpointing = False
    """Whether the blocks recompute their activations; the library reads it."""
    # The kernels' exponents need float32, whatever the type of the rest.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = list(KERNEL_PARAMETERS)

    def __init__(self, config: LocostPretrainedConfig) -> None:
        super().__init__(config)
        self.locost = Locost(config.settings())
        self.generation_config = GenerationConfig(
            pad_token_id=config.pad_id,
            eos_token_id=config.eos_id,
            decoder_start_token_id=config.start_id,
        )
        self._loads = self.locost.embedding.weight.is_meta
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        state: "Decoding | None" = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput | tuple[Tensor, ...]:
        """Source (B, L), or its encoder's outputs, and a target (B, T) -> logits (B, T, V).

        Labels (B, T) give the loss, and without `decoder_input_ids` the decoder's input; -100 has
        no loss. With a `state`, logits of the last position only, (B, 1, V). Raises
        ValueError naming an argument that is missing or impossible.
        """
        settings = self.locost.config
        if input_ids is not None:
            check_inputs(settings, input_ids, attention_mask, labels, labels is not None)
        if encoder_outputs is None:
            if input_ids is None:
                raise ValueError("input_ids: missing; give them or encoder_outputs")
            states = self.locost.encode(input_ids, attention_mask)
        else:
            states = encoder_outputs[0]
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError(
                    "decoder_input_ids: missing; give them or labels (label smoothing takes the "
                    "labels: DataCollatorForSeq2Seq(tokenizer, model=model) adds them)"
                )
            decoder_input_ids = shift_right(settings, labels)
        if state is None:
            embedded = self.locost.embedding(decoder_input_ids)
            logits = self.locost.project(self.locost.decoder(embedded, states, attention_mask))
        else:
            logits = state.advance(self.locost, decoder_input_ids)
        loss = None if labels is None else target_loss(logits, labels)
        output = Seq2SeqLMOutput(loss=loss, logits=logits, encoder_last_hidden_state=states)
        return output.to_tuple() if return_dict is False else output

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The decoder's input (B, T) of labels (B, T), for the library's data collator."""
        return shift_right(self.locost.config, labels)

    def get_encoder(self, *_: Any, **__: Any) -> "Encoding":
        """Embedding and encoder, which `generate` runs once."""
        return Encoding(self.locost)

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding, which the decoder shares."""
        return self.locost.embedding

    def get_output_embeddings(self) -> nn.Linear | None:
        """The head; None if tied to the embedding."""
        return self.locost.head

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Embedding:
        """Refused: the vocabulary is that of the tokenizer."""
        raise ValueError("the vocabulary is the tokenizer's; train a model with another one")

    def _init_weights(self, module: nn.Module) -> None:
        """Modules are initialised when built; one built empty must be loaded completely."""
        if self._loads:
            for name, parameter in module.named_parameters(recurse=False):
                if not getattr(parameter, "_is_hf_initialized", False):
                    raise ValueError(
                        f"the weights lack a {type(module).__name__}'s {name}, or its shape is "
                        "another; export the model again"
                    )

    def _set_gradient_checkpointing(
        self, enable: bool = True, *_: Any, every_n_layers: int = 1, **__: Any
    ) -> None:
        """Every block recomputes, without re-entrance, whatever function the library proposes."""
        if every_n_layers != 1:
            raise ValueError(
                f"every_n_layers={every_n_layers}: every block recomputes; leave it out"
            )
        self.gradient_checkpointing = enable
        self.locost.recompute_activations(enable)

    # Hooks of `generate` for a model with its own cache, passed on as `state`.

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        if generation_config.use_cache:
            states, mask = model_kwargs["encoder_outputs"][0], model_kwargs.get("attention_mask")
            # `generate` repeats each document's states; the beams share them.
            beams = max(generation_config.num_beams, generation_config.num_return_sequences)
            state = self.locost.decoder.start(
                states[::beams],
                None if mask is None else mask[::beams],
                generation_config.max_length,
                beams,
            )
            model_kwargs["state"] = Decoding(state, len(states))

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        encoder_outputs: BaseModelOutput | None = None,
        attention_mask: Tensor | None = None,
        state: "Decoding | None" = None,
        **_: Any,
    ) -> dict[str, Any]:
        """The arguments of `forward` for the target so far, (B, T)."""
        return {
            "decoder_input_ids": input_ids,
            "encoder_outputs": encoder_outputs,
            "attention_mask": attention_mask,
            "state": state,
        }

    def _reorder_cache(self, state: "Decoding", rows: Tensor) -> "Decoding":
        state.select(rows)
        return state


class Encoding(nn.Module):
    """The encoder as called by `generate`; refers to the model without registering its weights."""

    def __init__(self, model: Locost) -> None:
        super().__init__()
        self.__dict__["model"] = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_dict: bool = True,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> BaseModelOutput:
        """Source (B, L) -> states (B, L, H). Raises ValueError naming an impossible argument."""
        if output_attentions or output_hidden_states:
            raise ValueError(
                "output_attentions, output_hidden_states: not available; leave them out"
            )
        model = cast(Locost, self.model)
        check_inputs(model.config, input_ids, attention_mask)
        return BaseModelOutput(last_hidden_state=model.encode(input_ids, attention_mask))


class Decoding:
    """The decoder's state and the ids (R, T) processed so far; R rows, beams of documents."""

    def __init__(self, state: DecoderState, rows: int) -> None:
        self.state, self.ids = state, torch.empty(rows, 0)

    def advance(self, model: Locost, ids: Tensor) -> Tensor:
        """Process the new ids of the target so far (R, T) -> logits of its end (R, 1, V).

        Raises RuntimeError if the other ids are not those processed before.
        """
        done = self.ids.shape[1]
        if not torch.equal(ids[:, :done], self.ids.to(ids)):
            raise RuntimeError(
                "the rows moved and the decoder's state did not; generate with use_cache=False"
            )
        for position in range(done, ids.shape[1]):
            embedded = model.embedding(ids[:, position : position + 1])
            x = model.decoder.step(embedded, self.state)
        self.ids = ids
        return model.project(x)

    def select(self, rows: Tensor) -> None:
        """Row i continues from the state of row rows[i], a beam of the same document."""
        self.state.select(rows)
        self.ids = self.ids[rows]
