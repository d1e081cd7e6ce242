"""Updates that must not be made, losses that jump, ranks that fail or hang."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fault_matrix import (
    CONFIGURATIONS,
    FULL_DISK,
    IN_A_ROW,
    NAN_GRADIENT,
    NAN_SAMPLE,
    NAN_WEIGHT,
    SPIKE,
    STEPS,
)
from fault_runs import end, launch, processes_of
from plain_loop import plain_updates
from trainer_runs import metrics, weights

from pipeline.config import RunConfig, TrainConfig, seconds
from pipeline.data.order import GlobalOrder
from pipeline.distributed import network_check
from pipeline.distributed.launcher_environment import host_name
from pipeline.distributed.network_check import Link, slow_links
from pipeline.distributed.world import HANGS, RunFailed, World
from pipeline.shards import Dataset
from pipeline.training.callbacks.health import FEWEST, WINDOW, Health, is_spike
from pipeline.training.preflight import Survey, check_same_weights
from pipeline.training.state import StepResult, TrainingState, Verdict

ALONE = World(0, 1, 0, torch.device("cpu"))


@pytest.fixture
def health(tmp_path, run_config):
    return make_health(
        tmp_path, replace(run_config, train=TrainConfig(max_skipped_updates=3, skip_spikes=True))
    )


def make_health(run: Path, config: RunConfig) -> Health:
    health = Health(lambda step: [{"index": step}])
    health.on_fit_start(TrainingState(config, ALONE, run))
    return health


def judge(health: Health, loss: float) -> Verdict:
    return Verdict(loss, loss, health.wants_update(loss), stopping=False)


def record(
    health: Health, step: int, verdict: Verdict, applied: bool, norm: float | None
) -> dict[str, float]:
    """The metrics of update `step`, from 1."""
    state = TrainingState(None, ALONE, Path(), step=step)
    result = StepResult(None, verdict, applied, norm)
    health.after_update(state, result)
    return result.metrics


def test_a_spike_is_so_many_deviations_above_the_mean():
    losses = [1.0, 3.0] * (FEWEST // 2)  # mean 2, deviation 1
    assert not is_spike(7.9, losses, 6)
    assert is_spike(8.1, losses, 6)
    assert not is_spike(-8.1, losses, 6)
    assert not is_spike(8.1, losses, 0)
    assert not is_spike(8.1, losses[1:], 6)
    assert not is_spike(math.nan, losses, 6)


def test_updates_are_wanted_unless_not_finite_or_a_spike(health, tmp_path, run_config):
    for k in range(WINDOW):
        verdict = judge(health, 2.0 + (-1) ** k)
        assert verdict.wanted
        record(health, k + 1, verdict, applied=True, norm=1.0)
    assert not health.wants_update(math.nan)
    assert not health.wants_update(math.inf)
    assert not health.wants_update(9.0) and health.spike
    resumed = make_health(tmp_path, replace(run_config, train=health.settings))
    resumed.load_state(health.state_dict())
    assert not resumed.wants_update(9.0) and resumed.wants_update(2.0)
    assert len(resumed.losses) == WINDOW
    health.settings = replace(health.settings, skip_spikes=False)
    assert health.wants_update(9.0) and health.spike


def test_skipped_updates_in_a_row_end_the_run(health, tmp_path):
    bad = judge(health, math.nan)
    good = judge(health, 2.0)
    record(health, 1, bad, applied=False, norm=math.inf)
    record(health, 2, bad, applied=False, norm=math.inf)
    values = record(health, 3, good, applied=True, norm=1.0)
    assert values == {"skipped_updates": 2, "loss_spike": 0.0}
    record(health, 4, bad, applied=False, norm=math.inf)
    record(health, 5, good, applied=False, norm=math.inf)
    with pytest.raises(RunFailed, match=r"step 6: 3 updates skipped in a row.*skipped-00000006"):
        record(health, 6, bad, applied=False, norm=math.inf)
    told = json.loads((tmp_path / "health" / "skipped-00000006.json").read_text())
    assert told["samples"] == [{"index": 5}] and told["loss"] == "nan"
    reason = json.loads((tmp_path / "health" / "skipped-00000005.json").read_text())["reason"]
    assert reason == "gradient is not finite"


@pytest.mark.parametrize(
    ("loss", "applied", "norm"),
    [(2.0, True, -1.0), (2.0, True, None), (2.0, False, -1.0), (2.0, True, math.nan),
     (math.nan, True, 1.0)],
)  # fmt: skip
def test_an_update_that_ought_not_to_be_ends_the_run(health, loss, applied, norm):
    with pytest.raises(RunFailed, match="DeepSpeed"):
        record(health, 1, judge(health, loss), applied, norm)


def test_durations():
    assert [seconds(text) for text in ("19h30m", "45m", "90s", "1h0m30s")] == [
        70_200, 2_700, 90, 3_630,
    ]  # fmt: skip
    for text in ("", "90", "0s", "30m1h", "1.5h", "-1h"):
        with pytest.raises(ValueError, match=r"train\.stop_after is .* set --train\.stop_after"):
            seconds(text)


def test_a_survey_of_micro_batches_has_the_longest_and_the_share_of_real_positions():
    shapes = Counter({(4, 100, 10): 1, (2, 300, 5): 1, (9, 20, 12): 2, (1, 400, 50): 1})
    found = Survey(5, shapes, source_tokens=1_000, target_tokens=158)
    assert found.longest() == {(2, 300, 5), (9, 20, 12)}
    assert found.padding() == (
        "padding: 4 source and 4 target lengths in 4 shapes of micro-batches; 56.8% of source and "
        "50.0% of target positions are real (5 steps)"
    )
    assert Survey(0, Counter(), 0, 0).longest() == set()


def test_links_far_below_the_median_are_named():
    def of(*speeds: float) -> list[Link]:
        return [Link(f"n{k}", f"n{k + 1}", speed) for k, speed in enumerate(speeds)]

    assert slow_links([]) == slow_links(of(9.0, 0.001)) == slow_links(of(9.0, 8.0, 0.9)) == []
    slow = slow_links(of(9.0, 8.0, 0.79, 12.0, 0.1))
    assert [str(link) for link in slow] == ["n2 -> n3 0.79 GB/s", "n4 -> n5 0.1 GB/s"]


def test_slow_links_end_the_run_unless_it_was_one_moment(monkeypatch, capsys):
    monkeypatch.setattr(network_check, "all_reduce_speed", lambda world: 5.0)
    tries = [[Link("n1", "n2", 9.0), Link("n2", "n3", 0.1), Link("n3", "n1", 8.0)]]
    monkeypatch.setattr(network_check, "ring", lambda world, hosts: tries.pop(0))
    tries.append([Link("n1", "n2", 9.0), Link("n2", "n3", 7.0), Link("n3", "n1", 8.0)])
    network_check.check_links(ThreeHosts(0, 3, 0, torch.device("cpu")))
    assert capsys.readouterr().out == (
        "3 processes on n1 (1), n2 (1), n3 (1): all-reduce of 16 MiB 5 GB/s; n1 -> n2 9 GB/s, "
        "n2 -> n3 7 GB/s, n3 -> n1 8 GB/s\n"
    )
    tries += [[Link("n1", "n2", 9.0), Link("n2", "n3", 0.1), Link("n3", "n1", 8.0)]] * 2
    with pytest.raises(RunFailed, match=r"slow links: n2 -> n3 0\.1 GB/s, where the median is 8"):
        network_check.check_links(ThreeHosts(0, 3, 0, torch.device("cpu")))


class ThreeHosts(World):
    def gather(self, value):
        return ["n1", "n2", "n3"]


def test_weights_that_differ_are_named(tmp_path):
    model = torch.nn.Linear(3, 2)

    class Other(World):
        def gather(self, value):
            return [value, [value[0], value[1] + 1]]

    check_same_weights(model, ALONE)
    with pytest.raises(RunFailed, match=r"bias on ranks \[1\]"):
        check_same_weights(model, Other(0, 2, 0, torch.device("cpu")))


@pytest.mark.slow
@pytest.mark.parametrize("zero", CONFIGURATIONS)
class TestEveryStage:
    def test_the_start_up_check_changes_nothing(self, fault_runs, zero):
        checked, unchecked = (
            fault_runs.path / f"{kind}-{zero}" for kind in ("checked", "unchecked")
        )
        assert metrics(checked) == metrics(unchecked)
        assert weights(checked) == weights(unchecked)

    def test_nan_on_one_rank_skips_the_update_on_all(self, fault_runs, zero, dataset_folder):
        bad = {NAN_SAMPLE, NAN_GRADIENT}
        for told in fault_runs.ranks:
            case = told[f"skipped-{zero}"]
            assert case["status"] == 0
            unchanged = {int(step) for step, changed in case["changed"].items() if not changed}
            assert unchanged == bad and len(case["changed"]) == STEPS
        run = fault_runs.path / f"skipped-{zero}"
        lines = metrics(run)
        assert [line["skipped_updates"] for line in lines] == [0, 0, 1, 1, 2, 2, 2, 2]
        expected = plain_updates(dataset_folder, STEPS, skipped=bad)
        for line, (reference, _) in zip(lines, expected, strict=True):
            if line["step"] == NAN_SAMPLE:
                assert not line["loss"] or math.isnan(line["loss"])
            else:
                assert line["loss"] == pytest.approx(reference, rel=1e-5)
        files = sorted((run / "health").iterdir())
        sample, gradient = (json.loads(file.read_text()) for file in files)
        assert (sample["step"], sample["reason"]) == (NAN_SAMPLE, "loss is nan")
        assert sample["loss_by_rank"][1] == "nan" and sample["loss_by_rank"][0] > 0
        assert (gradient["step"], gradient["reason"]) == (NAN_GRADIENT, "gradient is not finite")
        dataset = Dataset(dataset_folder)
        order = GlobalOrder([[shard.samples for shard in dataset.shards]], 8, 0)
        assert sample["samples"] == [
            {
                "dataset": str(dataset_folder),
                "index": ref.sample,
                "id": dataset[ref.sample].metadata["id"],
            }
            for ref in order.samples(NAN_SAMPLE - 1)
        ]

    def test_a_nan_weight_ends_the_run(self, fault_runs, zero):
        last = NAN_WEIGHT + IN_A_ROW - 1
        for told in fault_runs.ranks:
            failed = told[f"weight-{zero}"]["failed"]
            assert f"step {last}: {IN_A_ROW} updates skipped in a row" in failed
            assert f"skipped-{last:08d}.json" in failed
        folder = fault_runs.path / f"weight-{zero}" / "health"
        told = json.loads((folder / f"skipped-{last:08d}.json").read_text())
        assert told["skipped_in_a_row"] == IN_A_ROW and len(told["samples"]) == 8


@pytest.mark.slow
def test_a_spike_is_logged_or_skipped_and_a_resumed_run_sees_it_too(fault_runs):
    lines = {name: metrics(fault_runs.path / name) for name in ("spike", "spike-skipped")}
    for told in lines.values():
        assert [line["step"] for line in told if line["loss_spike"]] == [SPIKE]
    assert lines["spike"][: SPIKE - 1] == lines["spike-skipped"][: SPIKE - 1]
    assert [line["skipped_updates"] for line in lines["spike"]] == [0] * (SPIKE + 2)
    assert [line["skipped_updates"] for line in lines["spike-skipped"]] == [0] * (SPIKE - 1) + [
        1
    ] * 3
    for rank in fault_runs.ranks:
        changed = rank["spike-skipped"]["changed"]
        assert [int(step) for step in changed if not changed[step]] == [SPIKE]
        assert rank["spike-resumed/stopped"]["status"] == 85
    assert f"step {SPIKE}: the loss" in fault_runs.printed
    assert metrics(fault_runs.path / "spike-resumed") == lines["spike"]


@pytest.mark.slow
def test_metrics_that_find_no_room_end_the_run_in_one_line_on_all(fault_runs):
    run = fault_runs.path / "full-disk"
    for told in fault_runs.ranks:
        assert told["full-disk/failed"]["failed"] == (
            f"{run} cannot be written: rank 0 on {host_name()}: [Errno 28] No space left on "
            "device; the checkpoints are intact: make room or fix the folder, then start the same "
            "command again"
        )
        assert max(map(int, told["full-disk/failed"]["changed"])) == FULL_DISK + 1
        assert told["full-disk/finished"]["status"] == 0
        assert min(map(int, told["full-disk/finished"]["changed"])) == 5  # after checkpoint 4
    assert metrics(run) == metrics(fault_runs.path / "unchecked-zero1")
    beat = json.loads((run / "heartbeat.json").read_text())
    last = metrics(run)[-1]
    assert (beat["step"], beat["max_steps"], beat["loss"]) == (STEPS, STEPS, last["loss"])
    assert beat["seconds_per_step"] > 0 and beat["job"] is None


@pytest.mark.slow
def test_links_between_hosts_are_measured_both_ways(fault_runs):
    for told in fault_runs.ranks:
        assert set(told["links"]) == {"one other", "other one"}
        assert all(0.001 < speed < 1000 for speed in told["links"].values())
        assert told["one host"] == []
    said = [line for line in fault_runs.printed.splitlines() if "all-reduce of 16 MiB" in line]
    assert said and all(f"2 processes on {host_name()} (2): " in line for line in said)


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_job_with_its_message(trainer, tmp_path):
    process = launch(trainer, tmp_path / "run", fault="update:1:3:raise")
    try:
        text, _ = process.communicate(timeout=120)
    finally:
        end(process)
    assert process.returncode not in (0, 85)
    assert f"error: rank 1 on {host_name()}: KeyError: 'injected'" in text
    assert not processes_of(tmp_path / "run")


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_job_with_its_stack(trainer, tmp_path):
    run = tmp_path / "run"
    status, text = trainer.run(run, "--train.hang_timeout", "10", fault="update:1:3:sleep")
    assert status == HANGS
    said = [line for line in text.splitlines() if line.startswith("error: rank")]
    assert f"rank 1 on {host_name()} has not moved for 10 s" in said[0]
    assert "the update of step 3" in said[0]
    stack = (run / "health" / "stack-rank1.txt").read_text()
    assert "in sleep" in stack and "fault_injection.py" in stack and "in sleep" in text


@pytest.mark.slow
def test_too_little_memory_ends_in_one_line_with_remedies(trainer, tmp_path):
    status, text = trainer.run(tmp_path / "run", processes=1, fault="update:0:3:memory")
    assert status == 1
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in text
    assert f"rank 0 on {host_name()}: CUDA out of memory" in errors[0]
    assert "--train.accumulation" in errors[0] and "--train.recompute_activations" in errors[0]
