"""Bytes a process holds in a training step, by part, at each moment that may be the highest."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipeline.estimation.activations import FP32, Computation, Padded
from pipeline.model import Locost, LocostConfig

Parts = dict[str, int]
# DeepSpeed's defaults where its JSON says nothing, in elements.
REDUCE_BUCKET = 500_000_000
LIVE_PARAMETERS = 1_000_000_000


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters."""

    total: int
    encoder: int
    embedding: int
    products: int
    """Those of matrix products, of which bf16 keeps a copy while a micro-batch lasts."""

    @classmethod
    def of(cls, config: LocostConfig) -> "Parameters":
        """Counted on the model itself, built without memory."""
        with torch.device("meta"):
            model = Locost(config)
        linear = (part for part in model.modules() if isinstance(part, nn.Linear))
        embedding = model.embedding.weight.numel()
        return cls(
            _count(model),
            _count(model.encoder),
            embedding,
            sum(part.weight.numel() for part in linear) + (embedding if model.head is None else 0),
        )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@dataclass(frozen=True)
class Sharding:
    """How DeepSpeed spreads the states: stages 1 to 3 of ZeRO over a number of processes."""

    stage: int
    processes: int
    offload: bool
    """Master weights and AdamW's moments lie in the host's memory."""
    bucket: int
    """Gradients reduced together, in elements."""
    buffers: int
    """Buckets allocated at once."""
    live: int
    """Parameters of stage 3 that are whole at one time, at most."""

    @classmethod
    def of(cls, settings: dict[str, Any], processes: int) -> "Sharding":
        """As the filled-in DeepSpeed settings have it."""
        zero = settings["zero_optimization"]
        bf16 = settings["torch_autocast"]["enabled"]
        types = 2 if bf16 and settings["torch_autocast"]["lower_precision_safe_modules"] else 1
        stage = zero["stage"]
        return cls(
            stage,
            processes,
            zero.get("offload_optimizer", {}).get("device", "none") != "none",
            int(zero.get("reduce_bucket_size", REDUCE_BUCKET)),
            types * (2 if stage < 3 and zero.get("overlap_comm") else 1),
            int(zero.get("stage3_max_live_parameters", LIVE_PARAMETERS)),
        )

    def part(self, parameters: int) -> int:
        """Bytes in fp32 of one process's share."""
        return FP32 * -(-parameters // self.processes)


def moments(
    parameters: Parameters, sharding: Sharding, computation: Computation, batch: Padded,
    accumulation: int,
) -> dict[str, Parts]:  # fmt: skip
    """What a process holds at each moment of its last micro-batch, by part.

    `loss`: all activations are there, and the loss turns back. `decoder`: its last block does.
    `feed-forward`, `convolution`: those of the encoder's last block, the decoder's activations
    being gone. `reduction`: all gradients are there. `update`: AdamW. On a CPU only the touched
    part of a bucket counts.
    """
    on_gpu, kept = computation.on_gpu, computation
    total = parameters.total
    whole, part = FP32 * total, sharding.part(total)
    weights = whole
    if sharding.stage == 3:
        weights = part if sharding.processes == 1 else part + FP32 * min(total, sharding.live)
    optimizer = 0 if sharding.offload and on_gpu else 3 * part
    before = 0  # gradients of the earlier micro-batches
    if accumulation > 1:
        before = whole if sharding.stage == 1 else 0 if sharding.offload and on_gpu else part
    if on_gpu:
        before = max(before, 0 if sharding.offload else part)
    in_bf16 = kept.product_bytes < FP32 and not kept.recompute
    copies = 2 * parameters.products if in_bf16 else 0

    def bucket(gradients: int) -> int:
        allocated = FP32 * sharding.bucket * sharding.buffers
        return allocated if on_gpu else min(FP32 * gradients, allocated)

    def at(**parts: int) -> Parts:
        named = {name.replace("_", " "): size for name, size in parts.items()}
        return {"weights": weights, "optimizer state": optimizer, **named}

    activations = {
        "encoder_activations": kept.encoder(batch),
        "decoder_activations": kept.decoder(batch),
        "cross_attention": kept.cross_attention(batch),
    }
    embedding = FP32 * parameters.embedding
    change, ssm_buffers = kept.convolution_backward(batch)
    later = {
        "logits": kept.held_logits(batch),
        "gradients": before + embedding,
        "bf16_weights": copies,
        "buckets": bucket(total - parameters.encoder),
    }
    return {
        "loss": at(
            **activations, logits=kept.logits(batch), gradients=before, bf16_weights=copies,
            buckets=bucket(0),
        ),
        "decoder": at(
            **activations, logits=kept.held_logits(batch), gradients=before + embedding,
            bf16_weights=copies, attention_gradients=kept.attention_backward(batch),
            buckets=bucket(0),
        ),
        "feed-forward": at(
            encoder_activations=kept.encoder(batch) + kept.feed_forward_backward(batch), **later
        ),
        "convolution": at(
            encoder_activations=kept.encoder(batch) + change,
            SSM_kernel_and_FFT=ssm_buffers,
            **later,
        ),
        "reduction": at(
            logits=kept.held_logits(batch), gradients=before + part, buckets=bucket(total),
        ),
        "update": at(
            logits=kept.held_logits(batch),
            gradients=0 if sharding.offload and on_gpu else 2 * part + sharding.part(
                max(parameters.embedding, total - parameters.embedding)
            ),
        ),
    }  # fmt: skip


def host_bytes(parameters: Parameters, sharding: Sharding) -> int:
    """Bytes of host memory a process with offloading takes: master weights, moments, gradients."""
    return 4 * sharding.part(parameters.total) if sharding.offload else 0


def highest(by_moment: dict[str, Parts]) -> str:
    """The moment at which most is held."""
    return max(by_moment, key=lambda moment: sum(by_moment[moment].values()))


def peak_bytes(by_moment: dict[str, Parts]) -> int:
    """The most that is held."""
    return sum(by_moment[highest(by_moment)].values())
