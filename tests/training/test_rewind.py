"""A run that went wrong goes back to a kept checkpoint, and leaves out the batches at fault."""

import shutil

import pytest
from trainer_runs import SMALL, assert_same_weights, metrics, weights

pytestmark = pytest.mark.slow

OPTIONS = (
    "--train.max_steps", "12", "--train.checkpoint_every", "2", "--train.keep_checkpoints", "1",
    "--train.keep_every", "4", "--train.validate_every", "6", "--model.dropout", "0.1",
)  # fmt: skip
SKIP = ("--train.skip_batches", "6-7,20")
BACK = ("--train.resume_from", "4")


def kept(run):
    return sorted(int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*"))


def test_a_run_goes_back_and_then_equals_one_that_skipped_from_the_start(trainer, tmp_path):
    run, unbroken = tmp_path / "run", tmp_path / "unbroken"
    status, text = trainer.run(unbroken, *OPTIONS, *SKIP, processes=1)
    assert status == 0, text
    batches = [line["batch"] for line in metrics(unbroken) if "batch" in line]
    assert batches == [*range(1, 6), *range(8, 15)]

    status, text = trainer.run(run, *OPTIONS, processes=1)
    assert status == 0, text
    assert kept(run) == [4, 8, 12]
    diverged = (run / "metrics.jsonl").read_bytes()

    status, text = trainer.run(run, *OPTIONS, *SKIP, processes=1)
    assert status == 2 and "give the same spans up to there" in text, text
    status, text = trainer.run(run, *OPTIONS, "--train.resume_from", "6", processes=1)
    assert status == 2 and "keeps 4, 8, 12" in text, text
    status, text = trainer.run(run, *OPTIONS, *SKIP, *BACK, "--dry_run", processes=1)
    assert status == 0 and kept(run) == [4, 8, 12], text

    # Killed after it went back, started again by the same command.
    fault = "update:0:9:kill-all"
    status, text = trainer.run(run, *OPTIONS, *SKIP, *BACK, processes=1, fault=fault)
    assert status == -9 and "goes back to step 4" in text, text
    aside = run / "before-rewind-1"
    assert {path.name for path in aside.iterdir()} == {
        "step-00000008", "step-00000012", "metrics.jsonl", "FINISHED",
    }  # fmt: skip
    assert (aside / "metrics.jsonl").read_bytes() == diverged
    status, text = trainer.run(run, *OPTIONS, *SKIP, *BACK, processes=1)
    assert status == 0 and "resumes after step 8" in text, text
    assert not (run / "before-rewind-2").exists()
    assert kept(run) == [4, 8, 12]
    for line, other in zip(metrics(run), metrics(unbroken), strict=True):
        if line["step"] <= 4:  # made before any batch was skipped
            other.pop("batch", None)
        assert line == other
    assert_same_weights(run, unbroken)

    status, text = trainer.run(run, *OPTIONS, *SKIP, *BACK, processes=1)
    assert status == 0 and "is finished" in text, text


def test_a_begun_run_does_not_need_its_initial_weights(trainer, unbroken, tmp_path):
    initial = tmp_path / "initial"
    shutil.copytree(unbroken / "last" / "model", initial)
    run, whole = tmp_path / "run", tmp_path / "whole"
    options = ("--model.init_from", str(initial), *SMALL, "--train.precision", "fp32")
    for output, steps in ((whole, 8), (run, 4)):
        status, text = trainer.run(output, *options, "--train.max_steps", str(steps), processes=1)
        assert status == 0, text
    shutil.rmtree(initial)
    status, text = trainer.run(run, *options, "--train.max_steps", "8", processes=1)
    assert status == 0 and "resumes after step 4" in text, text
    assert weights(run) == weights(whole)
    status, text = trainer.run(tmp_path / "new", *options, processes=1)
    assert status == 2 and f"{initial} is not a model" in text, text
