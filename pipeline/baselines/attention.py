"""The attention of baselines: which kernel computes it, and in which words it is reported.

Weights, results and saved folders are the same with every kernel.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from pipeline.baselines.fast_encoders import (
    FastBigBirdAttention,
    FastLEDSelfAttention,
    FastLocalAttention,
    FastT5Attention,
    FastTransientGlobalAttention,
)
from pipeline.baselines.systems import ATTENTION, AttentionChoice

SPARSE = {
    "LongT5LocalAttention": "blocks",
    "LongT5TransientGlobalAttention": "blocks",
    "LEDEncoderSelfAttention": "windows",
    "BigBirdPegasusBlockSparseAttention": "blocks",
    "LSGBartEncoderSelfAttention": "blocks",
}
"""The encoders' sparse attention by class, and its pattern in words."""
CROSS = ("EncDecAttention", "encoder_attn")
"""The names of cross-attention in a decoder's layer."""


def use_attention(network: Any, choice: AttentionChoice) -> None:
    """Set the kernels of a network of transformers: the fastest exact ones, or plain products.

    Raises ValueError for another choice.
    """
    if choice not in ATTENTION:
        raise ValueError(f"attention is {choice!r}; give {' or '.join(ATTENTION)}")
    if choice == "eager":
        _use_eager(network)
        return
    for module in network.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "sdpa"  # also where transformers does not offer it
        if mixin := FAST.get(type(module).__name__):
            module.__class__ = type(mixin.__name__, (mixin, type(module)), {})
    _prepare_decoder(network)


def _use_eager(network: Any) -> None:
    if hasattr(network, "set_attn_implementation"):
        network.set_attn_implementation("eager")
        return
    network.config._attn_implementation = "eager"  # transformers 4.37 builds classes by it
    for module in network.modules():
        if type(module).__name__ == "BartSdpaAttention":
            module.__class__ = type(module).__base__
        if hasattr(module, "_use_sdpa"):
            module._use_sdpa = False


class SDPAProduct:
    """LSG's softmax(q k^T) v: of blocks folded into the heads."""

    kernel = "sdpa"

    def forward(
        self: Any,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Queries (B, A, .., T, K), a mask that broadcasts to the scores -> (B, A, .., T, K)."""
        *lead, _, _ = query_layer.shape
        if attention_mask is not None:
            attention_mask = attention_mask.expand(*lead, *attention_mask.shape[-2:]).flatten(1, -3)
        queries, keys, values = (x.flatten(1, -3) for x in (query_layer, key_layer, value_layer))
        context = functional.scaled_dot_product_attention(
            queries, keys, values, attention_mask, self.dropout.p if self.training else 0.0
        )
        return context.unflatten(1, lead[1:])


class _ThreeResults:
    """LED's decoder layer expects the cache as a third result."""

    def forward(self, *arguments: Any, **named: Any) -> tuple[Tensor, None, Any]:
        """As of BART's attention."""
        named.pop("output_attentions", None)
        output, _ = super().forward(*arguments, **named)  # type: ignore[misc]
        return output, None, named.get("cache")


FAST: dict[str, type] = {
    "T5Attention": FastT5Attention,
    "LongT5Attention": FastT5Attention,
    "LongT5LocalAttention": FastLocalAttention,
    "LongT5TransientGlobalAttention": FastTransientGlobalAttention,
    "LEDEncoderSelfAttention": FastLEDSelfAttention,
    "BigBirdPegasusEncoderAttention": FastBigBirdAttention,
    "BaseAttentionProduct": SDPAProduct,
}
"""What is mixed into classes of transformers and lsg-converter, by their names."""


def _prepare_decoder(network: Any) -> None:
    """Name BigBird's and LED's causal attention, which transformers, never giving them SDPA, does
    not, and let LED's, which has no choice of kernels, compute as BART's."""
    for layer in getattr(network.get_decoder(), "layers", ()):
        for module, causal in ((layer.self_attn, True), (layer.encoder_attn, False)):
            module.is_causal = causal
            if type(module).__name__ == "LEDDecoderAttention":
                barts = import_module("transformers.models.bart.modeling_bart").BartAttention
                module.__class__ = type("LEDDecoderAttention", (_ThreeResults, barts), {})
                module.config = network.config


def attention_kernels(network: Any) -> dict[str, str]:
    """The kernels in use, in words, by part: encoder, decoder (its self-attention), cross."""
    encoder, decoder = (list(_kernels(part)) for part in _sides(network))
    return {
        "encoder": _words(kernel for _, kernel in encoder),
        "decoder": _words(kernel for name, kernel in decoder if name not in CROSS),
        "cross": _words(kernel for name, kernel in decoder if name in CROSS),
    }


def _sides(network: Any) -> tuple[nn.Module, nn.Module]:
    return network.get_encoder(), network.get_decoder()


def _kernels(module: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The kernel of every module that attends, with its name in its layer."""
    if hasattr(module, "kernel"):  # one of ours says it itself
        yield name, module.kernel
    elif any(hasattr(module, queries) for queries in ("q", "q_proj", "query")):
        pattern = SPARSE.get(type(module).__name__)
        if pattern:
            product = getattr(module, "full_attention", None)  # LSG's parts do it
            yield name, f"{pattern}, {getattr(product, 'kernel', 'eager')}"
        else:
            config = getattr(module, "config", None)
            yield name, getattr(config, "_attn_implementation", None) or "eager"
    else:
        for own_name, child in module.named_children():
            yield from _kernels(child, own_name)


def _words(kernels: Iterable[str]) -> str:
    """Different ones are joined."""
    return " + ".join(sorted(set(kernels)))
