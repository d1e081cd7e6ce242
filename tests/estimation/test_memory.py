"""The memory of a step against autograd's saved tensors, an H100's peaks, and measured peaks."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pipeline.common.paths import ROOT
from pipeline.config import parse
from pipeline.estimation.activations import ActivationMemory, PaddedShape
from pipeline.estimation.memory import highest, host_bytes, memory_by_moment, peak_bytes
from pipeline.model import Locost, LocostConfig, ssm
from pipeline.model.parameter_counts import FP32, ParameterCounts
from pipeline.model.sequence import Unconnected
from pipeline.training.deepspeed_config import deepspeed_settings
from pipeline.training.sharding import Sharding

SMALL = {
    "vocab_size": 997, "d_model": 96, "state_dim": 4, "d_ff": 160, "encoder_layers": 2,
    "decoder_layers": 3, "num_heads": 3, "head_dim": 16,
}  # fmt: skip


def saved_bytes(
    config: LocostConfig,
    bf16: bool,
    batch: PaddedShape,
    recompute: bool = False,
    processes: int = 1,
) -> int:
    """Bytes that autograd saves of a forward pass, each storage once, without parameters."""
    model = Locost(config).train()
    model.recompute_activations(recompute)
    model.use_sequence(Unconnected(processes))
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {  # of weights, and of two or three that are multiplied together
        (count * p.shape[0], p.shape[1])[::order]
        for p in model.parameters() if p.dim() == 2 for order in (1, -1) for count in (1, 2, 3)
    }  # fmt: skip
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.dtype == torch.bfloat16 and tuple(tensor.shape) in shapes
        if tensor.untyped_storage().data_ptr() not in own and not copy:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.randint(3, config.vocab_size, (batch.samples, batch.source))
    labels = torch.randint(3, config.vocab_size, (batch.samples, batch.target))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=bf16),
    ):
        output = model(ids, torch.ones_like(ids), labels)
    assert output.loss is not None
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dropout": 0.1},
        {"positions": "rotary"},
        {"ssm_projections": "complex"},
        {"ssm_directions": "separate"},
    ],
    ids=lambda changes: "".join(map(str, changes.values())) or "plain",
)
def test_activations_are_what_autograd_saves(changes, bf16):
    config, batch = LocostConfig(**SMALL, **changes), PaddedShape(2, 320, 112)
    counted = ActivationMemory(config, 2 if bf16 else 4, on_gpu=False)
    total = counted.encoder(batch) + counted.decoder(batch) + counted.cross_attention(batch)
    total += FP32 * batch.targets * config.vocab_size  # the loss keeps the log-probabilities
    assert total == pytest.approx(saved_bytes(config, bf16, batch), rel=0.03)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("processes", [2, 4])
def test_a_process_of_a_group_keeps_its_part(processes, bf16):
    """Positions of an odd source are divided, target positions are not."""
    config, batch = LocostConfig(**SMALL), PaddedShape(2, 637, 112)
    counted = ActivationMemory(config, 2 if bf16 else 4, on_gpu=False, sequence=processes)
    encoder, decoder = counted.encoder(batch), counted.decoder(batch)
    total = encoder + decoder + counted.cross_attention(batch)
    total += FP32 * batch.targets * config.vocab_size
    assert total == pytest.approx(saved_bytes(config, bf16, batch, processes=processes), rel=0.03)
    alone = ActivationMemory(config, 2 if bf16 else 4, on_gpu=False)
    assert encoder == pytest.approx(alone.encoder(batch) / processes, rel=0.01)


@pytest.mark.parametrize("published", [False, True])
def test_kept_spectra_are_counted(published, monkeypatch):
    config = LocostConfig(**SMALL, published_convolution=published)
    batch, frequencies = PaddedShape(16, 30, 4), 33 if published else 31

    def both() -> list[int]:
        counted = ActivationMemory(config, 4, on_gpu=False).encoder(batch)
        return [counted, saved_bytes(config, False, batch)]

    kept, recomputed = both(), saved_bytes(config, False, batch, recompute=True)
    monkeypatch.setattr(ssm, "SPECTRUM_SHARE", 1e9)
    assert recomputed == saved_bytes(config, False, batch, recompute=True)
    for bytes_, without in zip(kept, both(), strict=True):
        assert bytes_ - without == config.encoder_layers * 96 * frequencies * 8


def test_recomputed_blocks_keep_only_their_inputs():
    config, batch = LocostConfig(**SMALL), PaddedShape(2, 320, 112)
    counted = ActivationMemory(config, 4, on_gpu=False, recompute=True)
    total = counted.encoder(batch) + counted.decoder(batch) + FP32 * batch.targets * 997
    assert total == pytest.approx(saved_bytes(config, False, batch, recompute=True), rel=0.1)


def test_parameters_are_the_models():
    assert ParameterCounts.of(LocostConfig()).total == 234_724_224
    with torch.device("meta"):
        untied = Locost(LocostConfig(**SMALL, tie_embeddings=False))
    counted = ParameterCounts.of(untied.config)
    assert counted.total == sum(parameter.numel() for parameter in untied.parameters())
    assert counted.products < counted.total - counted.embedding


def test_peaks_of_an_h100_within_5_percent():
    """From benchmarks/h100: forward and backward of the base model, bf16, without reduction."""
    recorded = json.loads((ROOT / "benchmarks" / "h100" / "gpu_check.json").read_text())
    rows = recorded["sections"]["time: training"]
    config = LocostConfig()
    parameters = ParameterCounts.of(config)
    assert len(rows) == 2
    for row in rows:
        batch = PaddedShape(row["B"], row["L"], row["T"])
        counted = ActivationMemory(config, 2, on_gpu=True)
        total = FP32 * parameters.total + 2 * parameters.products
        total += counted.encoder(batch) + counted.decoder(batch)
        total += counted.cross_attention(batch)
        # What the code of that time kept too: all logits, a copy of the states for each reader's
        # keys and values, and the gate of each feed-forward.
        total += batch.targets * config.vocab_size * (2 + 3 * FP32)
        total += 2 * batch.sources * config.d_model * (2 * config.decoder_layers - 1)
        gates = config.encoder_layers * batch.sources + config.decoder_layers * batch.targets
        total += 2 * gates * config.d_ff
        assert total / 2**30 == pytest.approx(row["peak_gib"], rel=0.05)


def sharding(stage: int, processes: int, *arguments: str) -> Sharding:
    name = f"ds_configs/zero{stage}.json"
    config, _ = parse(["--data.train", "x", "--deepspeed_config", name, *arguments])
    return Sharding.of(deepspeed_settings(config, processes), processes)


@pytest.mark.parametrize(("stage", "gradients"), [(1, 16), (2, 1), (3, 1)])
def test_states_are_shared_by_the_stage(stage, gradients):
    """fp32: 4 bytes of weights and gradients each, 12 of master weights and moments."""
    config, processes = LocostConfig(**SMALL), 16
    parameters = ParameterCounts.of(config)
    found = memory_by_moment(
        parameters, sharding(stage, processes), ActivationMemory(config, 2, on_gpu=True),
        PaddedShape(1, 64, 32), accumulation=2,
    )  # fmt: skip
    share = parameters.total / processes
    assert found["loss"]["optimizer state"] == pytest.approx(12 * share, rel=1e-3)
    assert found["loss"]["gradients"] == pytest.approx(4 * gradients * share, rel=1e-3)


def test_offloaded_states_are_in_the_hosts_memory():
    config = LocostConfig(**SMALL)
    parameters = ParameterCounts.of(config)
    offloaded = Sharding(2, 4, True, 1000, 2, 10**9)
    computation = ActivationMemory(config, 2, on_gpu=True)
    found = memory_by_moment(parameters, offloaded, computation, PaddedShape(1, 64, 32), 2)
    assert found["loss"]["optimizer state"] == found["loss"]["gradients"] == 0
    assert host_bytes(parameters, offloaded) == pytest.approx(4 * parameters.total, rel=1e-3)


def test_recomputing_and_smaller_micro_batches_take_less():
    config, long = LocostConfig(), PaddedShape(8, 4096, 910)
    parameters, states = ParameterCounts.of(config), sharding(1, 16)

    def peak(batch: PaddedShape, recompute: bool = False, accumulation: int = 1) -> int:
        computation = ActivationMemory(config, 2, True, recompute)
        return peak_bytes(memory_by_moment(parameters, states, computation, batch, accumulation))

    assert peak(long, recompute=True) < 0.6 * peak(long)
    assert peak(PaddedShape(4, 4096, 910), accumulation=2) < 0.7 * peak(long)


@dataclass(frozen=True)
class Size:
    """One measured training."""

    samples: int
    source: int
    target: int
    vocabulary: int
    arguments: str


# Largest are the encoder, states and logits, and attention written out (dropout), in this order.
SIZES = {
    "encoder": Size(
        4, 1024, 128, 1000,
        "--model.d_model 128 --model.d_ff 384 --model.state_dim 16 --model.encoder_layers 4 "
        "--model.decoder_layers 2 --model.num_heads 4 --model.head_dim 32 --train.batch_size 4 "
        "--train.accumulation 1 --deepspeed_config ds_configs/zero1.json",
    ),
    "vocabulary": Size(
        4, 256, 128, 32100,
        "--model.d_model 256 --model.d_ff 512 --model.state_dim 32 --model.encoder_layers 2 "
        "--model.decoder_layers 2 --model.num_heads 4 --model.head_dim 64 --train.batch_size 8 "
        "--train.accumulation 2 --deepspeed_config ds_configs/zero2.json",
    ),
    "dropout": Size(
        1, 8192, 256, 500,
        "--model.d_model 64 --model.d_ff 128 --model.state_dim 16 --model.encoder_layers 4 "
        "--model.decoder_layers 4 --model.num_heads 4 --model.head_dim 16 --model.dropout 0.1 "
        "--train.batch_size 1 --train.accumulation 1 --deepspeed_config ds_configs/zero1.json",
    ),
    "recomputed": Size(
        8, 1024, 64, 1000,
        "--model.d_model 128 --model.d_ff 384 --model.state_dim 16 --model.encoder_layers 6 "
        "--model.decoder_layers 2 --model.num_heads 4 --model.head_dim 32 --train.batch_size 8 "
        "--train.accumulation 1 --train.recompute_activations true "
        "--deepspeed_config ds_configs/zero3.json",
    ),
}  # fmt: skip


@pytest.mark.slow
def test_the_measured_peaks_are_within_15_percent():
    common = "--data.train x --train.precision fp32"
    cases = [
        [size.samples, size.source, size.target, size.vocabulary, f"{common} {size.arguments}"]
        for size in SIZES.values()
    ]
    measured = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("measured_steps.py")), json.dumps(cases)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"},
    )
    assert measured.returncode == 0, measured.stderr
    lines = [line for line in measured.stdout.splitlines() if line.startswith("peak ")]
    peaks = [int(line.split()[1]) / 1e6 for line in lines]
    for (name, size), peak in zip(SIZES.items(), peaks, strict=True):
        config, _ = parse(f"{common} {size.arguments}".split())
        architecture = config.architecture(size.vocabulary)
        found = memory_by_moment(
            ParameterCounts.of(architecture),
            Sharding.of(deepspeed_settings(config, 1), 1),
            ActivationMemory(architecture, 4, False, config.train.recompute_activations),
            PaddedShape(size.samples, size.source, size.target),
            config.train.accumulation,
        )
        estimated = peak_bytes(found) / 1e6
        print(f"{name}: {peak:.0f} MB, estimated {estimated:.0f}, highest at {highest(found)}")
        assert estimated == pytest.approx(peak, rel=0.15), (name, found)
