"""What a step costs, against counts and a clock of one's own."""

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pipeline.data.batches import StepBatch
from pipeline.distributed.device import peak_memory_gib
from pipeline.distributed.world import World
from pipeline.model import LocostConfig
from pipeline.model.flops import training_flops
from pipeline.training.callbacks import costs
from pipeline.training.callbacks.costs import (
    Costs,
    EnergyMeter,
    StepClock,
    batch_flops,
    carbon,
    energy_reader,
)
from pipeline.training.callbacks.recorder import NoRecorder
from pipeline.training.state import StepResult, TrainingState

CONFIG = LocostConfig(
    vocab_size=100, d_model=32, state_dim=4, d_ff=64, encoder_layers=2, decoder_layers=3,
    num_heads=2, head_dim=8,
)  # fmt: skip


def test_the_clock_adds_up_the_parts(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(now))
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


class Meters:
    """Stand-ins of the meters of two devices, by index: NVML itself cannot run here."""

    def __init__(self, monkeypatch, *readings):
        self.readings = [iter(one) for one in readings]
        monkeypatch.setattr(costs, "energy_reader", self.reader)

    def reader(self, device):
        if device.index >= len(self.readings):
            return None
        return lambda: self.read(next(self.readings[device.index]))

    def read(self, value):
        if isinstance(value, Exception):
            raise value
        return value


class NVMLError(Exception):
    """As pynvml's."""


class TwoRanks:
    """Two threads as ranks: a sum waits for the other's, as a collective does."""

    def __init__(self):
        self.barrier, self.values = threading.Barrier(2, timeout=30), [(), ()]

    def world(self, rank):
        one = types.SimpleNamespace(size=2, device=torch.device("cpu", rank), calls=0)

        def sum_up(*values):
            one.calls += 1
            self.values[rank] = values
            self.barrier.wait()
            totals = [sum(pair) for pair in zip(*self.values, strict=True)]
            self.barrier.wait()
            return totals

        one.sum = sum_up
        return one


STEP = StepBatch([], 1, 1, 1.0, 1.0, np.ones((1, 2)), np.ones((1, 2)))


class Described(NoRecorder):
    def __init__(self):
        self.texts = {}

    def describe(self, name, text):
        self.texts[name] = text


def steps_of_rank(world, config, steps, progress=None):
    """Metrics of each step, the callback and its recorder."""
    callback = Costs(object(), recorder := Described())
    callback.load_state(progress or {})
    state = TrainingState(config, world, None)
    callback.on_engine_ready(state)
    callback.on_loop_start(state)
    found = []
    for state.step in range(1, steps + 1):
        callback.before_step(state)
        callback.after_part("data")
        result = StepResult(STEP, None, True, None, {})
        callback.after_update(state, result)
        found.append(result.metrics)
    return found, callback, recorder


@pytest.mark.parametrize("failure", [NVMLError("GPU is lost"), 1200.0])
def test_a_meter_that_fails_is_said_once_and_never_read_again(failure, monkeypatch, capsys):
    Meters(monkeypatch, [1000.0, 1500.0, failure, 2000.0])
    meter = EnergyMeter(torch.device("cuda", 0))
    assert meter.measures
    assert [meter.joules() for _ in range(4)] == [500.0, None, None, None]
    assert not meter.measures
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("energy is unknown from here on: ")
    assert ("GPU is lost" in said) == isinstance(failure, NVMLError)
    assert ("went back from 1500 to 1200 J" in said) == isinstance(failure, float)


def test_energy_ends_on_all_ranks_where_one_meter_fails(run_config, monkeypatch):
    Meters(monkeypatch, range(0, 9000, 1000), [0.0, 500.0, 900.0, NVMLError("gone"), 5000.0])
    ranks = TwoRanks()
    worlds = [ranks.world(rank) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda world: steps_of_rank(world, run_config, 5), worlds))
    assert worlds[0].calls == worlds[1].calls == 1 + 5
    for metrics, callback, recorder in results:
        kwh = [step.get("energy_kwh") for step in metrics]
        assert kwh == [1500 / 3.6e6, 2900 / 3.6e6, None, None, None]
        assert ["carbon_kg" in step for step in metrics] == [True, True, False, False, False]
        assert callback.state_dict() == {"joules": None}
        assert recorder.texts["energy"] == "unknown from step 3 on: 1 of 2 meters failed"
        assert "energy: by NVML" in recorder.texts["figures"]


@pytest.mark.parametrize(
    ("readings", "joules"),
    [
        ([[0.0, 1.0, 2.0]], None),  # it failed before the checkpoint
        ([], 5.0),  # resumed where there is no meter
    ],
)
def test_a_resumed_run_does_not_take_a_part_for_the_whole(
    readings, joules, run_config, monkeypatch
):
    Meters(monkeypatch, *readings)
    world = World(0, 1, 0, torch.device("cpu", 0))
    metrics, callback, recorder = steps_of_rank(world, run_config, 2, {"joules": joules})
    assert not any("energy_kwh" in step for step in metrics)
    assert callback.state_dict() == {"joules": None}
    assert "energy: unknown" in recorder.texts["figures"]


def test_a_resumed_run_adds_to_what_was_used_before(run_config, monkeypatch):
    Meters(monkeypatch, [100.0, 400.0, 500.0])
    world = World(0, 1, 0, torch.device("cpu", 0))
    metrics, *_ = steps_of_rank(world, run_config, 2, {"joules": 1000.0})
    assert [step["energy_kwh"] for step in metrics] == [1300 / 3.6e6, 1400 / 3.6e6]


def test_peak_memory_is_of_this_process():
    before = peak_memory_gib(torch.device("cpu"))
    block = torch.ones(2**26)  # 0.25 GiB
    assert 0.05 < before <= peak_memory_gib(torch.device("cpu"))
    assert peak_memory_gib(torch.device("cpu")) > block.numel() * 4 / 2**30
