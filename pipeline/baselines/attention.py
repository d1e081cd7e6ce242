"""The attention of baselines: which kernel computes it, and in which words it is reported."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from pipeline.baselines.systems import ATTENTION, AttentionChoice

SPARSE = {
    "LongT5LocalAttention": "blocks",
    "LongT5TransientGlobalAttention": "blocks",
    "LEDEncoderSelfAttention": "windows",
    "BigBirdPegasusBlockSparseAttention": "blocks",
    "LSGBartEncoderAttention": "blocks",
}
"""The encoders' sparse attention by class, and its pattern in words."""


def use_attention(network: Any, choice: AttentionChoice) -> None:
    """Set the kernels of a network of transformers: the fastest exact ones, or plain products.

    Raises ValueError for another choice.
    """
    if choice not in ATTENTION:
        raise ValueError(f"attention is {choice!r}; give {' or '.join(ATTENTION)}")
    if choice == "eager" and hasattr(network, "set_attn_implementation"):
        network.set_attn_implementation("eager")


def attention_kernels(network: Any) -> dict[str, str]:
    """The kernels in use, in words, by part: encoder, decoder (its self-attention), cross."""
    decoder = {
        name: module for name, module in _attentions(network.get_decoder()) if "q_" not in name
    }
    cross = {name for name in decoder if "encoder_attn" in name or "EncDec" in name}
    return {
        "encoder": _words(module for _, module in _attentions(network.get_encoder())),
        "decoder": _words(module for name, module in decoder.items() if name not in cross),
        "cross": _words(decoder[name] for name in cross),
    }


def _attentions(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that attend, by name: those with projections of queries."""
    for name, module in part.named_modules():
        if any(hasattr(module, query) for query in ("q", "q_proj", "query")):
            yield name, module


def _words(modules: Any) -> str:
    """The kernels of these modules; several are joined."""
    return " + ".join(sorted({_kernel(module) for module in modules}))


def _kernel(module: Any) -> str:
    """The kernel of one module."""
    pattern = SPARSE.get(type(module).__name__)
    if pattern is not None:
        return f"{pattern}, eager"
    config = getattr(module, "config", None)
    return getattr(config, "_attn_implementation", None) or "eager"
