"""Training with shared sources against torch alone, at every ZeRO stage; resumed; killed."""

import subprocess
import sys
from pathlib import Path

import pytest
from plain_loop import BATCH, PEAK, WARMUP, plain_updates
from sequence_runs import CASES, DROPOUT, PAIR, SHARED, STEPS
from trainer_runs import SMALL, assert_same_weights, losses, metrics, weights

from pipeline.common.files import read_object

pytestmark = pytest.mark.slow
SETTINGS = [
    "--train.batch_size", BATCH, "--train.peak_lr", PEAK, "--train.warmup_steps", WARMUP,
    "--train.accumulation", 2, "--train.precision", "fp32", "--train.checkpoint_every", 2,
    "--train.validate_every", 2,
]  # fmt: skip
EXACT = {"to and fro", "two groups of two", "one group of four", "accumulation chosen"} | {
    name for name, *_ in PAIR if name.startswith("zero")
}


@pytest.fixture(scope="module")
def runs(dataset_folder, validation_folder, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("shared")
    script = str(Path(__file__).with_name("sequence_runs.py"))
    data = ["--data.train", str(dataset_folder), "--data.validation", str(validation_folder)]
    for processes in CASES:
        command = [sys.executable, script, str(processes), str(output), *SMALL, *data]
        finished = subprocess.run(
            [*command, *map(str, SETTINGS)], capture_output=True, text=True, timeout=900
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        (output / f"told-{processes}").write_text(finished.stdout)
    return output


@pytest.fixture(scope="module")
def plain(dataset_folder) -> list[tuple[float, float]]:
    return list(plain_updates(dataset_folder, STEPS))


@pytest.mark.parametrize("name", sorted(EXACT))
def test_steps_equal_those_of_torch_alone(runs, plain, name):
    lines = [line for line in metrics(runs / name) if "loss" in line]
    assert len(lines) == (2 if name == "accumulation chosen" else STEPS)
    for line, (loss, norm) in zip(lines, plain, strict=False):
        assert line["loss"] == pytest.approx(loss, rel=1e-5)
        assert line["gradient_norm"] == pytest.approx(norm, rel=1e-4)


def test_bf16_differs_by_its_rounding(runs, dataset_folder):
    expected = [loss for loss, _ in plain_updates(dataset_folder, STEPS, "bf16")]
    assert losses(runs / "bf16") == pytest.approx(expected, rel=5e-3)


def validations(run: Path) -> list[float]:
    return [line["validation_loss"] for line in metrics(run) if "validation_loss" in line]


def test_validation_counts_a_group_once(runs):
    """That of step 4 of `to and fro` was made without shared sources."""
    every = [validations(runs / name) for name in ("to and fro", "zero2", "two groups of two")]
    assert len(every[0]) == STEPS // 2
    for found in every[1:]:
        assert found == pytest.approx(every[0], rel=1e-5)


def test_another_size_is_a_changed_setting_of_the_same_run(runs):
    told = (runs / "told-2").read_text()
    for done, before, now in ((2, 2, 1), (4, 1, 2)):
        changed = f"train.sequence_parallel_size was {before}, now {now}"
        steps = f"train.max_steps was {done}, now {done + 2}"
        assert f"resumes after step {done}; changed settings: {steps}, {changed}" in told


def test_a_stopped_run_with_dropout_resumes_bit_for_bit(runs):
    unbroken, stopped = runs / "dropout", runs / "stopped"
    assert losses(stopped) == losses(unbroken) != losses(runs / "zero2")
    assert weights(stopped) == weights(unbroken)


def test_accumulation_is_chosen_without_the_other_processes(runs):
    record = read_object(runs / "accumulation chosen" / "choices.json")["accumulation"]
    assert record["chosen"] == 1 and record["for"]["sequence_parallel_size"] == 2


def test_a_killed_run_resumes_bit_for_bit(trainer, tmp_path):
    """One rank of the group dies before the update of step 4; checkpoints are of every second."""
    options = [*SHARED, *DROPOUT, *map(str, SETTINGS), "--train.max_steps", str(STEPS)]
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    status, text = trainer.run(unbroken, *options)
    assert status == 0, text
    status, text = trainer.run(killed, *options, fault="update:1:4:kill")
    assert status not in (0, 85), text
    status, text = trainer.run(killed, *options)
    assert status == 0 and "resumes after step 2" in text, text
    assert metrics(killed) == metrics(unbroken)
    assert_same_weights(killed, unbroken)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--train.sequence_parallel_size", "3"],
            "train.sequence_parallel_size 3 does not divide the 4 processes",
        ),
        (
            ["--train.sequence_parallel_size", "4", "--model.d_model", "18"],
            "train.sequence_parallel_size 4 does not divide model.d_model 18",
        ),
    ],
)
def test_a_dry_run_names_what_does_not_fit(trainer, tmp_path, options, said):
    status, text = trainer.run(
        tmp_path / "run", *options, "--dry_run", "--processes", "4", processes=1
    )
    assert status == 2 and said in text, text


def test_a_dry_run_knows_the_groups(trainer, tmp_path):
    """A batch of 8 in 4 micro-batches fills 2 groups of 4, not 8 processes."""
    check = ("--train.accumulation", "4", "--dry_run", "--processes", "8")
    shared = ("--train.sequence_parallel_size", "4")
    status, text = trainer.run(tmp_path / "run", *check, *shared, processes=1)
    assert status == 0 and "ready" in text, text
    status, text = trainer.run(tmp_path / "run", *check, processes=1)
    assert status == 2 and "cannot fill 8 processes x train.accumulation 4" in text, text
