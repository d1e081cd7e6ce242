"""The baseline systems and their base sizes; does not import transformers."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

AttentionChoice = Literal["fast", "eager"]
ATTENTION: tuple[AttentionChoice, ...] = get_args(AttentionChoice)
Name = Literal["longt5-tglobal", "longt5-local", "led", "bigbird", "lsg", "t5", "bart", "pegasus"]


@dataclass(frozen=True)
class System:
    """A system, in the terms of transformers."""

    model_type: str
    """`model_type` of its configuration."""
    vocab_size: int
    """Vocabulary of the published models."""
    base: dict[str, Any]
    """The published base size, as settings of its configuration."""
    dropout: str = "dropout"
    """The setting of the residual dropout."""
    positions: tuple[str | None, str | None] = (None, None)
    """The settings that limit source and target, in tokens; None: no limit."""
    legacy: bool = False
    """Whether it needs the packages of requirements-legacy.txt."""


def _encoder_decoder(layers: int, **others: Any) -> dict[str, Any]:
    """The BART family at d_model 768; only residual dropout is on."""
    return {
        "d_model": 768,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072,
        "encoder_attention_heads": 12,
        "decoder_attention_heads": 12,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        **others,
    }


_T5 = {"d_model": 768, "d_kv": 64, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12}
_LONGT5 = {**_T5, "d_ff": 2048, "feed_forward_proj": "gated-gelu"}
_BOTH = ("max_position_embeddings", "max_position_embeddings")
_LED = ("max_encoder_position_embeddings", "max_decoder_position_embeddings")

SYSTEMS: dict[Name, System] = {
    "longt5-tglobal": System(
        "longt5", 32_128, {**_LONGT5, "encoder_attention_type": "transient-global"}, "dropout_rate"
    ),
    "longt5-local": System(
        "longt5", 32_128, {**_LONGT5, "encoder_attention_type": "local"}, "dropout_rate"
    ),
    "led": System(
        "led",
        50_265,
        _encoder_decoder(6, attention_window=1024, **dict(zip(_LED, (16_384, 1024), strict=True))),
        positions=_LED,
    ),
    "bigbird": System(
        "bigbird_pegasus",
        96_103,
        _encoder_decoder(12, max_position_embeddings=4096),
        positions=_BOTH,
    ),
    "lsg": System(  # lsg-bart-base-16384
        "bart",
        50_265,
        _encoder_decoder(
            6,
            max_position_embeddings=16_384,
            block_size=128,
            sparse_block_size=128,
            sparsity_factor=2,
            sparsity_type="norm",
            architectures=["LSGBartForConditionalGeneration"],  # identifies its folder
        ),
        positions=_BOTH,
        legacy=True,
    ),
    "t5": System("t5", 32_128, {**_T5, "d_ff": 3072}, "dropout_rate"),
    "bart": System(
        "bart", 50_265, _encoder_decoder(6, max_position_embeddings=1024), positions=_BOTH
    ),
    "pegasus": System(
        "pegasus",
        96_103,
        _encoder_decoder(
            12, max_position_embeddings=1024, activation_function="relu", scale_embedding=True
        ),
        positions=_BOTH,
    ),
}


@dataclass(frozen=True, kw_only=True)
class BaselineConfig:
    """A run's settings of a baseline; other sizes are those of the base model or of a folder."""

    name: Name
    """Key of SYSTEMS."""
    vocab_size: int
    """Entries of the embedding: at least the tokenizer's ids."""
    dropout: float = 0.0
    """Probability of residual dropout, in training."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of transformers' configuration that differ from the base size."""
    attention: AttentionChoice = "fast"
    """The fastest exact kernels, or plain products and softmax; not part of a folder."""
    pad_id: int = 0
    eos_id: int = 1
    start_id: int = 0
    """Token that the decoder starts from."""

    @property
    def system(self) -> System:
        """The system of that name."""
        return SYSTEMS[self.name]


def name_of(settings: Any) -> Name | None:
    """The system that a configuration (a config.json) belongs to; None: none of them."""
    if not isinstance(settings, dict):
        return None
    lsg = "LSG" in str(settings.get("architectures"))
    for name, system in SYSTEMS.items():
        kind = system.base.get("encoder_attention_type")
        if (
            settings.get("model_type") == system.model_type
            and (kind is None or settings.get("encoder_attention_type", "local") == kind)
            and lsg == (name == "lsg")
        ):
            return name
    return None
