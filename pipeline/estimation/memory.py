"""Bytes that a process holds in a training step, by part, at each moment that may be the peak."""

from dataclasses import dataclass
from typing import Any

from pipeline.estimation.activations import ActivationMemory, PaddedShape
from pipeline.model.parameter_counts import FP32, ParameterCounts

BytesByPart = dict[str, int]
# DeepSpeed's defaults, in elements.
REDUCE_BUCKET = 500_000_000
LIVE_PARAMETERS = 1_000_000_000


@dataclass(frozen=True)
class Sharding:
    """How DeepSpeed shards the states: ZeRO stages 1 to 3 over a number of processes."""

    stage: int
    processes: int
    offload: bool
    """Master weights and AdamW's moments are in host memory."""
    bucket: int
    """Gradients reduced together, in elements."""
    buffers: int
    """Buckets allocated at once."""
    live: int
    """Stage 3: most parameters gathered at one time."""

    @classmethod
    def of(cls, settings: dict[str, Any], processes: int) -> "Sharding":
        """From the filled-in DeepSpeed settings."""
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
        """Bytes of one process's share, in fp32."""
        return FP32 * -(-parameters // self.processes)


def memory_by_moment(
    parameters: ParameterCounts,
    sharding: Sharding,
    activations: ActivationMemory,
    batch: PaddedShape,
    accumulation: int,
) -> dict[str, BytesByPart]:
    """Bytes that a process holds at each moment of its last micro-batch, by part.

    `loss`: backward of the loss, with all activations alive. `decoder`: backward of its last block.
    `feed-forward`, `convolution`: backward of those of the encoder's last block, when the decoder's
    activations are freed. `reduction`: all gradients are there. `update`: AdamW. On a CPU only the
    touched part of a bucket counts.
    """
    on_gpu = activations.on_gpu
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
    in_bf16 = activations.product_bytes < FP32 and not activations.recompute
    copies = 2 * parameters.products if in_bf16 else 0

    def bucket(gradients: int) -> int:
        allocated = FP32 * sharding.bucket * sharding.buffers
        return allocated if on_gpu else min(FP32 * gradients, allocated)

    def at(**parts: int) -> BytesByPart:
        named = {name.replace("_", " "): size for name, size in parts.items()}
        return {"weights": weights, "optimizer state": optimizer, **named}

    encoder = activations.encoder(batch)
    saved = {
        "encoder_activations": encoder,
        "decoder_activations": activations.decoder(batch),
        "cross_attention": activations.cross_attention(batch),
    }
    embedding = FP32 * parameters.embedding
    change, ssm_buffers = activations.convolution_backward(batch)
    later = {
        "gradients": before + embedding,
        "bf16_weights": copies,
        "buckets": bucket(total - parameters.encoder),
    }
    return {
        "loss": at(
            **saved, logits=activations.logits(batch), gradients=before, bf16_weights=copies,
            buckets=bucket(0),
        ),
        "decoder": at(
            **saved, gradients=before + embedding, bf16_weights=copies,
            attention_gradients=activations.attention_backward(batch), buckets=bucket(0),
        ),
        "feed-forward": at(
            encoder_activations=encoder + activations.feed_forward_backward(batch), **later
        ),
        "convolution": at(
            encoder_activations=encoder + change,
            SSM_kernel_and_FFT=ssm_buffers,
            **later,
        ),
        "reduction": at(
            gradients=before + part, buckets=bucket(total),
        ),
        "update": at(
            gradients=0 if sharding.offload and on_gpu else 2 * part + sharding.part(
                max(parameters.embedding, total - parameters.embedding)
            ),
        ),
    }  # fmt: skip


def host_bytes(parameters: ParameterCounts, sharding: Sharding) -> int:
    """Host memory of a process with offloading: master weights, moments, gradients."""
    return 4 * sharding.part(parameters.total) if sharding.offload else 0


def highest(by_moment: dict[str, BytesByPart]) -> str:
    """The moment of the peak."""
    return max(by_moment, key=lambda moment: sum(by_moment[moment].values()))


def peak_bytes(by_moment: dict[str, BytesByPart]) -> int:
    """The peak, in bytes."""
    return sum(by_moment[highest(by_moment)].values())
