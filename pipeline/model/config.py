"""The sizes and variants of a LOCOST model."""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

INITIALISATION = frozenset(
    {"ssm_initialisation", "ssm_dt_min", "ssm_dt_max", "cross_attention_initialisation"}
)
"""Fields that only decide how random weights are drawn; folders with weights may lack them."""

LARGEST = 2**31 - 1
"""The largest number that a setting may be; infinity is beyond it."""


@dataclass(frozen=True, kw_only=True)
class LocostConfig:
    """Sizes and constants of a model; defaults: the paper's base model, 234,724,224 parameters."""

    vocab_size: int = 32100
    """Size of the vocabulary, sentinels included; set by the tokenizer."""
    d_model: int = 768
    """Channels of the residual stream; each encoder channel has its own state-space model."""
    state_dim: int = 256
    """Complex modes per channel of the state-space model, their conjugates not counted."""
    d_ff: int = 2048
    """Inner channels of the gated feed-forward."""
    encoder_layers: int = 12
    """Blocks of the encoder."""
    decoder_layers: int = 12
    """Blocks of the decoder."""
    num_heads: int = 12
    """Attention heads of the decoder."""
    head_dim: int = 64
    """Channels per attention head; heads x head_dim need not equal d_model."""
    dropout: float = 0.0
    """Probability of dropping an activation in training: 0 to pre-train, 0.1 to fine-tune."""
    tie_embeddings: bool = True
    """Whether the output head is the embedding matrix itself."""
    layer_norm_epsilon: float = 1e-6
    """Added to the mean square before its root in every norm."""
    relative_buckets: int = 32
    """Learned relative positions of the decoder's self-attention; half of them are exact."""
    relative_max_distance: int = 128
    """Distance in tokens from which all relative positions share the last bucket."""
    positions: Literal["relative", "rotary"] = "relative"
    """Position encoding of the decoder's self-attention: T5's learned bias, or rotary angles."""
    rotary_base: float = 10000.0
    """Wavelength scale of the rotary angles, in tokens; unused with the relative bias."""
    ssm_directions: Literal["shared", "separate", "causal"] = "shared"
    """Eigenvalues and B of the two directions: one for both (the published code), one each (the
    paper); or the causal direction alone."""
    ssm_initialisation: Literal["code", "paper"] = "code"
    """Initialisation of the kernel: the published code's (log-uniform steps, B = 1), or the paper's
    (steps U[0, 1], B and C N(0, 1))."""
    ssm_dt_min: float = 1e-3
    """Smallest step of the code's log-uniform initialisation: the slowest channels."""
    ssm_dt_max: float = 0.1
    """Largest one. The fastest mode turns by about pi state_dim dt a token: with few modes only
    steps near 1 tell neighbouring tokens apart."""
    cross_attention_initialisation: Literal["code", "copy"] = "code"
    """Initialisation of the cross-attention: torch's default for linear layers (the code), or one
    that attends to equal tokens and copies them."""
    ssm_discretisation: Literal["zero_order_hold", "none"] = "zero_order_hold"
    """Whether B is held over a step (the code), or used as it is: c b exp(z l) (the paper)."""
    ssm_projections: Literal["real", "complex"] = "real"
    """Type of q and k, the gate and the input of the convolution: real (the code), or complex (the
    paper)."""
    published_convolution: bool = False
    """Reproduce the published fused convolution, which is wrong unless the length is a power of
    two."""
    pad_id: int = 0
    """Padding token."""
    eos_id: int = 1
    """Token that ends a text."""
    start_id: int = 0
    """First token of the decoder's input."""

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            kind = type(field.default)
            if choices := get_args(types[field.name]):
                self._require(field.name, value in choices, f"give {' or '.join(choices)}")
            fits = type(value) is kind or (kind is float and type(value) is int)
            self._require(field.name, fits, f"give a value of type {kind.__name__}")
            if kind in (int, float):
                bounds = f"give a number from {-LARGEST} to {LARGEST}"
                self._require(field.name, -LARGEST <= value <= LARGEST, bounds)
            if kind is int and not field.name.endswith("_id"):
                self._require(field.name, value >= 1, "give at least 1")
        for name in ("pad_id", "eos_id", "start_id"):
            inside = 0 <= getattr(self, name) < self.vocab_size
            self._require(name, inside, f"give an id from 0 to {self.vocab_size - 1}")
        self._require("eos_id", self.eos_id != self.pad_id, "give another id than pad_id's")
        self._require("dropout", 0 <= self.dropout < 1, "give a probability from 0 to below 1")
        for name in ("layer_norm_epsilon", "rotary_base"):
            self._require(name, getattr(self, name) > 0, "give a positive number")
        low, high = self.ssm_dt_min, self.ssm_dt_max
        self._require("ssm_dt_min", 0 < low <= high, f"give at most ssm_dt_max ({high}), above 0")
        self._require(
            "ssm_dt_max",
            self.ssm_initialisation == "code" or (low, high) == (1e-3, 0.1),
            "the paper draws steps from U[0, 1]: leave ssm_dt_min and ssm_dt_max as they are",
        )
        self._require("relative_buckets", self.relative_buckets % 2 == 0, "give an even number")
        self._require(
            "relative_max_distance",
            self.relative_max_distance > self.relative_buckets // 2,
            f"give more than half of relative_buckets ({self.relative_buckets // 2})",
        )

        self._require(
            "head_dim",
            self.positions == "relative" or self.head_dim % 2 == 0,
            "rotary positions turn pairs of channels: give an even number",
        )
        self._require(
            "published_convolution",
            not self.published_convolution
            or (self.ssm_directions, self.ssm_projections) == ("shared", "real"),
            "the published one is real and shared by the directions: leave those as they are",
        )

    def _require(self, name: str, condition: bool, remedy: str) -> None:
        if not condition:
            shown = repr(getattr(self, name))
            shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
            raise ValueError(f"{name}={shown} is impossible: {remedy}")
