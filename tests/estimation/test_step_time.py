"""The time of a step: against an H100's, by hand, and between the shapes that were counted."""

import json
from dataclasses import replace

import numpy as np
import pytest

from pipeline.common.gpus import ACHIEVED, GPUS, LAUNCH_SECONDS
from pipeline.common.paths import ROOT
from pipeline.estimate import main
from pipeline.estimation import step_time
from pipeline.estimation.activations import PaddedShape
from pipeline.estimation.step_time import Assumptions, MicroBatchTimes, counts, exchanged_bytes
from pipeline.model import LocostConfig
from pipeline.training.sharding import Sharding

H100 = GPUS["h100"]
SMALL = LocostConfig(
    vocab_size=1000, d_model=64, state_dim=16, d_ff=128, encoder_layers=2, decoder_layers=2,
    num_heads=2, head_dim=32,
)  # fmt: skip
FP32 = {"communication_data_type": "fp32"}


def test_the_recorded_steps_of_an_h100_are_predicted():
    """One number is fitted to one step, 16 x 4,096; the others follow within 7 %.

    The launches and the card's time are those of the code that was measured.
    """
    recorded = ROOT / "benchmarks" / "h100"
    counted = json.loads((recorded / "counted.json").read_text())["steps"]
    sections = json.loads((recorded / "gpu_check.json").read_text())["sections"]
    rows = [*sections["time: training"], sections["time: profile"][0]]
    measured = {(row["B"], row["L"]): row["ms"] for row in rows}
    for step in counted:
        predicted = max(step["card_ms"] / ACHIEVED, 1000 * LAUNCH_SECONDS * step["launches"])
        ms = measured[step["batch"], step["source"]]
        print(f"{step['batch']} x {step['source']}: {ms:.0f} ms, predicted {predicted:.0f}")
        assert predicted == pytest.approx(ms, rel=0.07)
    assert counted[0]["card_ms"] / ACHIEVED == pytest.approx(measured[16, 4096], rel=0.005)


@pytest.mark.slow
def test_shapes_between_those_counted_are_close():
    shapes = [
        PaddedShape(max(1, 4000 // source), source, target)
        for source, target in ((40, 16), (112, 40), (160, 64), (224, 80), (320, 112), (448, 160),
                               (512, 256), (640, 320), (896, 384), (1280, 640), (2048, 910))
    ]  # fmt: skip
    times = MicroBatchTimes(SMALL, True, False, Assumptions(), shapes)
    assert len(times._known) == step_time.COUNTED
    scale = np.array([1 / ACHIEVED, LAUNCH_SECONDS])
    counted = np.array([scale * counts(SMALL, True, shape, H100) for shape in shapes])
    errors = np.array([times.of(shape) for shape in shapes]) / counted - 1
    assert np.abs(errors).max() < 0.08 and np.abs(errors.mean(axis=0)).max() < 0.02
    again = MicroBatchTimes(SMALL, True, True, Assumptions(), shapes)
    assert again.of(shapes[0]) == pytest.approx(4 / 3 * times.of(shapes[0]))


def test_a_step_is_the_slowest_ranks():
    """Two ranks, two micro-batches each, dealt in turn: 9 + 4 against 5 + 2 seconds."""
    seconds = {9: (9, 1), 5: (1, 5), 4: (4, 3), 2: (2, 1)}
    shapes = [PaddedShape(size, 8, 8) for size in seconds]
    times = MicroBatchTimes.__new__(MicroBatchTimes)
    times.sequence = 1
    times._known = {shape: np.array(seconds[shape.samples]) for shape in shapes}
    sharding = Sharding(1, 2, False, 1000, 1, 1000)
    assumed = Assumptions(replace(H100, bandwidth=1e6), achieved=0.5, link=1e3)
    found = step_time.step_time([shapes], times, sharding, FP32, 1000, assumed)
    assert found.micro_batches == 13 and found.host_bound == 0.25
    assert found.optimizer == pytest.approx(7 * 4 * 500 / 0.5e6)
    assert found.exchange == pytest.approx(500 * 8 / 1e3)
    assert found.total == pytest.approx(13 + 0.028 + 4)


def test_a_group_of_ranks_takes_micro_batches_as_one_rank_does():
    """Four ranks in two groups: as two ranks, with an exchange of 0.5 s a sample on the way."""
    shapes = [PaddedShape(size, 8, 8) for size in (9, 5, 4, 2)]
    times = MicroBatchTimes.__new__(MicroBatchTimes)
    times._known = {shape: np.array([shape.samples, 1]) for shape in shapes}
    times.sequence, times.exchange = 2, lambda shape: shape.samples / 2
    sharding = Sharding(2, 4, False, 1000, 1, 1000)
    assumed = Assumptions(replace(H100, bandwidth=1e6), achieved=0.5, link=1e3)
    found = step_time.step_time([shapes], times, sharding, FP32, 1000, assumed)
    assert (found.micro_batches, found.sequence_exchange) == (13, 6.5)
    assert found.exchange == pytest.approx(750 * 4 * (2 + 1) / 1e3)  # two micro-batches each
    assert found.total == pytest.approx(13 + 6.5 + found.optimizer + found.exchange)


@pytest.mark.parametrize(
    ("stage", "dtype", "numbers"),
    [(1, "fp32", 4 + 4), (1, "bf16", 2 + 4), (2, "fp32", 3 * 4 + 4), (3, "fp32", 3 * 4 + 6 * 4)],
)
def test_what_is_exchanged(stage, dtype, numbers):
    """By hand, for 3 micro-batches: a ring passes on all but its own part of each number."""
    sharding = Sharding(stage, 4, False, 1000, 1, 1000)
    found = exchanged_bytes(1000, sharding, {"communication_data_type": dtype}, 3)
    assert found == 750 * numbers
    assert exchanged_bytes(1000, replace(sharding, processes=1), FP32, 3) == 0


def test_the_report_says_what_it_assumes(tmp_path, capsys):
    small = "--model.d_model 64 --model.d_ff 128 --model.state_dim 16 --model.encoder_layers 2"
    small += " --model.decoder_layers 2 --model.num_heads 2 --model.head_dim 32"
    output = tmp_path / "figures.json"
    arguments = ["--launch_us", "20", "--link_gb", "50", "--output", str(output)]
    assert main([*small.split(), *arguments]) == 0
    text = capsys.readouterr().out
    assert "Time: 20 us of the host a launch, 63% of the GPU's rates, 50 GB/s between GPUs" in text
    found = json.loads(output.read_text())
    assert found["time"] == "counted" and found["assumed"]["link_gb"] == 50
    for column in found["columns"]:
        parts = column["step_parts"]
        total = parts["micro_batches"] + parts["optimizer"] + parts["exchange"]
        assert column["step_seconds"] == pytest.approx(total)
        seconds = column["tflop"] / (16 * H100.flops / 1e12 * column["mfu"])
        assert column["step_seconds"] == pytest.approx(seconds)
