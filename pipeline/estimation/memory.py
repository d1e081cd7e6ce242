"""Bytes that a process holds in a training step, by part, at each moment that may be the peak."""

from pipeline.estimation.activations import ActivationMemory, PaddedShape
from pipeline.model.parameter_counts import FP32, ParameterCounts
from pipeline.training.sharding import Sharding

BytesByPart = dict[str, int]


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
    touched part of a bucket counts. `exchange`, where processes share the source: positions are
    exchanged for channels, before the convolution's backward pass.
    """
    on_gpu = activations.on_gpu
    total = parameters.total
    whole, part = FP32 * total, sharding.part(total)
    weights = whole
    if sharding.stage == 3:
        weights = part if sharding.processes == 1 else part + FP32 * min(total, sharding.live)
    optimizer = sharding.optimizer(total, on_gpu)
    before = 0  # gradients of the earlier micro-batches
    if accumulation > 1:
        before = whole if sharding.stage == 1 else 0 if sharding.offload and on_gpu else part
    if on_gpu:
        before = max(before, 0 if sharding.offload else part)
    in_bf16 = activations.product_bytes < FP32 and not activations.recompute
    copies = 2 * parameters.products if in_bf16 else 0

    def bucket(gradients: int) -> int:
        return sharding.buckets(gradients, on_gpu)

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
    moments = {
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
    if activations.sequence > 1:
        buffers = activations.exchange(batch)
        moments["exchange"] = at(encoder_activations=encoder + change, exchange=buffers, **later)
    return moments


def host_bytes(parameters: ParameterCounts, sharding: Sharding) -> int:
    """Host memory of a process with offloading: master weights, moments, gradients."""
    return 4 * sharding.part(parameters.total) if sharding.offload else 0


def highest(by_moment: dict[str, BytesByPart]) -> str:
    """The moment of the peak."""
    return max(by_moment, key=lambda moment: sum(by_moment[moment].values()))


def peak_bytes(by_moment: dict[str, BytesByPart]) -> int:
    """The peak, in bytes."""
    return sum(by_moment[highest(by_moment)].values())
