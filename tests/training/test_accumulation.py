"""The number of micro-batches of an update, chosen by memory: real processes, small limits."""

import math
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from trainer_runs import assert_same_weights, metrics

from pipeline.common.files import read_object, replace_json
from pipeline.common.units import GIB
from pipeline.config import TrainConfig
from pipeline.data.planning import accumulations
from pipeline.distributed.world import RunFailed, World
from pipeline.model import Locost, LocostConfig
from pipeline.training import micro_batches
from pipeline.training.preflight import Survey
from pipeline.training.prepare import PreparedRun
from pipeline.training.sharding import MARGIN

ALONE = World(0, 1, 0, torch.device("cpu"))
WIDE = (
    "--model.d_model", "128", "--model.d_ff", "512", "--train.batch_size", "32",
    "--train.precision", "fp32", "--train.checkpoint_every", "2", "--train.validate_every", "4",
)  # fmt: skip
CHOSEN = (*WIDE, "--train.accumulation", "0", "--train.memory_limit_gib")
NEEDED = re.compile(r"(\d+) needs ([\d.]+) GiB")
SETTINGS = {
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1000},
    "torch_autocast": {"enabled": False, "lower_precision_safe_modules": []},
}
TINY = LocostConfig(
    vocab_size=40, d_model=64, state_dim=4, d_ff=256, encoder_layers=1, decoder_layers=1,
    num_heads=2, head_dim=8, dropout=0.1,
)  # fmt: skip


@pytest.mark.slow
def test_the_fewest_micro_batches_that_fit_are_chosen_and_kept(trainer, tmp_path):
    """1 and 2 do not fit, 4 does: the limit lies between what was measured of 2 and 4."""
    status, text = trainer.run(tmp_path / "none", *CHOSEN, "0.001")
    assert status == 1 and "no number of micro-batches fits" in text, text
    needed = {int(number): float(gib) for number, gib in NEEDED.findall(text)}
    assert [*needed] == [1, 2, 4, 8, 16]
    assert needed[1] > needed[2] > 1.3 * needed[4]
    limit = f"{math.sqrt(needed[2] * needed[4]) / (1 - MARGIN):.4f}"

    run, fixed = tmp_path / "run", tmp_path / "fixed"
    status, text = trainer.run(run, *CHOSEN, limit, "--train.max_steps", "2")
    assert status == 0 and "\naccumulation 4, micro-batches up to" in text, text
    assert read_object(run / "choices.json")["accumulation"]["chosen"] == 4
    status, text = trainer.run(run, *CHOSEN, limit, "--train.max_steps", "4")
    assert status == 0 and "\naccumulation 4, as chosen before" in text, text
    assert not NEEDED.search(text)
    status, text = trainer.run(
        fixed,
        *WIDE,
        "--train.accumulation",
        "4",
        "--train.max_steps",
        "4",
        "--train.max_steps",
        "4",
    )
    assert status == 0, text
    assert metrics(run)[-2:] == metrics(fixed)[-2:]
    assert_same_weights(run, fixed)

    one = ("--train.max_steps", "5")
    status, text = trainer.run(run, *CHOSEN, "1", *one, processes=1)
    assert status == 0, text
    assert "accumulation is chosen anew: memory_gib is 1.0, was " in text
    assert "processes is 1, was 2" in text and "\naccumulation 1, micro-batches up to" in text


@pytest.fixture
def prepared():
    torch.manual_seed(0)
    checkpoints = SimpleNamespace(steps_done=3)
    return PreparedRun(SETTINGS, None, None, None, Locost(TINY), checkpoints)


@pytest.mark.slow
def test_a_rehearsal_changes_nothing(run_config, prepared):
    config = replace(run_config, train=TrainConfig(accumulation=4, precision="bf16"))
    model = prepared.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    peaks = [
        micro_batches.peak_bytes(config, prepared, ALONE, {(samples, 1024, 64)}, 8 << 30)
        for samples in (1, 4)
    ]
    assert peaks[1] > peaks[0] + 3 * 1024 * (64 + 256) * 4  # float32 inputs, bf16 feed-forward
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_more_than_the_free_memory_is_found_without_harm(run_config, prepared):
    """The allocations fail, as on a card without room; afterwards there is memory again."""
    shapes = {(16, 8192, 64)}
    assert micro_batches.peak_bytes(run_config, prepared, ALONE, shapes, 64 << 20) == math.inf
    assert micro_batches.peak_bytes(run_config, prepared, ALONE, {(1, 64, 8)}, 8 << 30) < math.inf
    assert torch.ones(64 << 20).sum() == 64 << 20


def test_any_other_error_is_not_taken_for_a_lack_of_memory(run_config, prepared):
    prepared.model.decoder = torch.nn.Identity()
    with pytest.raises(TypeError):
        micro_batches.peak_bytes(run_config, prepared, ALONE, {(1, 64, 8)}, 8 << 30)


def test_a_lack_of_memory_leads_to_the_next_and_the_choice_holds(
    run_config, prepared, monkeypatch, tmp_path, capsys
):
    """Stand-ins for a card of 10 GiB: none is here to be filled."""
    peaks = {1: math.inf, 2: 9.5 * GIB, 4: 8.5 * GIB, 8: 1.0 * GIB}
    measured = []

    def peak_bytes(config, *_):
        measured.append(config.train.accumulation)
        return peaks[config.train.accumulation]

    monkeypatch.setattr(micro_batches, "peak_bytes", peak_bytes)
    monkeypatch.setattr(micro_batches, "batches_of", lambda *_: None)
    shapes = Counter({(4, 512, 64): 1})
    monkeypatch.setattr(micro_batches, "survey", lambda *_: Survey(1, shapes, 1, 1))

    def start(**train) -> int:
        settings = {"accumulation": 0, "batch_size": 8, "memory_limit_gib": 10.0, **train}
        config = replace(
            run_config, output=str(tmp_path), deepspeed_config="ds_configs/zero1.json",
            train=replace(run_config.train, **settings),
        )  # fmt: skip
        config, filled = micro_batches.with_accumulation(config, prepared, ALONE)
        assert filled.settings["gradient_accumulation_steps"] == config.train.accumulation
        return config.train.accumulation

    assert start() == 4
    assert capsys.readouterr().out == (
        "accumulation 4, micro-batches up to 4 x (512 + 64): of 10.000 GiB a process, less 10%, "
        "1 needs too much, 2 needs 9.500 GiB, 4 needs 8.500 GiB\n"
    )
    assert start() == 4 and measured == [1, 2, 4]  # as recorded
    assert start(memory_limit_gib=11.0) == 2
    assert "anew: memory_gib is 11.0, was 10.0\n" in capsys.readouterr().out
    file = tmp_path / "choices.json"
    kept = read_object(file)
    kept["accumulation"]["chosen"] = 3
    replace_json(file, kept)
    assert start(memory_limit_gib=11.0) == 2  # 3 is no choice
    with pytest.raises(RunFailed, match=r"no number of micro-batches fits.*8 needs 1\.000 GiB"):
        start(memory_limit_gib=1.0)


@pytest.mark.parametrize(
    ("batch", "processes", "expected"),
    [(256, 16, [1, 2, 4, 8, 16]), (24, 2, [1, 2, 4, 8, 12]), (7, 2, [1, 2, 3]), (3, 3, [1])],
)
def test_candidates_end_at_one_sample_each(batch, processes, expected):
    assert accumulations(batch, processes) == expected
