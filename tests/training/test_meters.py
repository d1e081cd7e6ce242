"""What a step costs, against counts and a clock of one's own."""

import sys
import types

import numpy as np
import pytest
import torch

from pipeline.benchmarking.flops import training_flops
from pipeline.model import LocostConfig
from pipeline.training import meters
from pipeline.training.meters import StepClock, batch_flops, carbon, energy_reader, peak_memory

CONFIG = LocostConfig(
    vocab_size=100, d_model=32, state_dim=4, d_ff=64, encoder_layers=2, decoder_layers=3,
    num_heads=2, head_dim=8,
)  # fmt: skip


def test_the_clock_adds_up_the_parts(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr(meters.time, "perf_counter", lambda: next(now))
    clock = StepClock(torch.device("cpu"))
    for part in ("data", "forward", "backward", "forward"):
        clock.lap(part)
    assert clock.seconds() == {"data": 1.0, "forward": 2.0 + 4.0, "backward": 3.0}


def test_operations_of_equal_samples_are_those_of_the_batch():
    whole = sum(training_flops(CONFIG, 6, 50, 20).values())
    lengths = np.array([[50, 20]] * 6)
    kernel = training_flops(CONFIG, 1, 50, 20)["kernel"]
    # The kernel's own transform is counted with each sample, a whole batch counts it once.
    transform = training_flops(CONFIG, 1, 50, 20)["FFT"] / 3
    one = batch_flops(CONFIG, lengths, np.array([[50, 20]]))
    assert one == pytest.approx(whole + 5 * transform)
    assert batch_flops(CONFIG, lengths, np.array([[50, 20]] * 3)) == pytest.approx(one + 2 * kernel)


def test_matrix_products_are_counted_as_torch_counts_them():
    """torch's own counter sees matrix products and attention, not FFTs and kernels."""
    from torch.utils.flop_counter import FlopCounterMode

    from pipeline.model import Locost

    model = Locost(CONFIG)
    source, target = 40, 16
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(1, source, dtype=int), None, torch.ones(1, target, dtype=int))
    parts = training_flops(CONFIG, 1, source, target)
    counted = sum(value / 3 for part, value in parts.items() if part not in ("kernel", "FFT"))
    # Causal attention is half of what torch counts for the whole square.
    square = CONFIG.decoder_layers * 2 * target * target * CONFIG.num_heads * CONFIG.head_dim
    assert counter.get_total_flops() == pytest.approx(counted + square, rel=0.02)


def test_the_papers_energy():
    """140 hours on 16 GPUs at 190 W and 58 g/kWh (paper, section 4)."""
    found = carbon(140 * 3600 * 16 * 190, 58)
    assert found["energy_kwh"] == pytest.approx(425.6)
    assert found["carbon_kg"] == pytest.approx(24.7, abs=0.02)


def test_energy_is_read_from_nvml(monkeypatch, capsys):
    """NVML itself cannot run here: a stand-in of its three functions."""
    assert energy_reader(torch.device("cpu")) is None
    millijoules = iter([1e6, 1e6, 1.5e6])
    stand_in = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(millijoules),
    )
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    properties = types.SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    read = energy_reader(torch.device("cuda", 0))
    assert read is not None
    assert (read(), read()) == (1000.0, 1500.0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy_reader(torch.device("cuda", 0)) is None
    assert "energy is not measured" in capsys.readouterr().err


def test_peak_memory_is_of_this_process():
    before = peak_memory(torch.device("cpu"))
    block = torch.ones(2**26)  # 0.25 GiB
    assert 0.05 < before <= peak_memory(torch.device("cpu"))
    assert peak_memory(torch.device("cpu")) > block.numel() * 4 / 2**30
