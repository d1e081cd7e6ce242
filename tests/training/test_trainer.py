"""The trainer as users start it: real processes, real checkpoints, real event files."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import yaml
from plain_loop import plain_updates
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainer_runs import ROOT, metrics, weights

from pipeline.model import Locost, LocostConfig, load_model
from pipeline.shards import file_sha256
from pipeline.training import preflight

pytestmark = pytest.mark.slow

DROPOUT = ("--model.dropout", "0.1", "--train.validation_rouge", "true")


def wait_for(path, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.02)


def test_a_run_leaves_what_it_should(unbroken, trainer):
    lines = metrics(unbroken, timing=True)
    steps = [line for line in lines if "loss" in line]
    validations = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in steps] == [*range(1, 11)]
    assert [line["step"] for line in validations] == [5, 10]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert 0 <= validations[-1]["validation_mean_rouge"] <= 1
    assert all(line["skipped_updates"] == 0 for line in steps)
    assert (unbroken / "checkpoints" / "latest").read_text() == "step-00000010"
    assert json.loads((unbroken / "FINISHED").read_text())["steps"] == 10
    config = yaml.safe_load((unbroken / "config.yaml").read_text())
    assert config["train"]["batch_size"] == 8 and config["model"]["d_model"] == 16
    for name in ("last", "best"):
        assert load_model(unbroken / name / "model").config.d_model == 16

    events = EventAccumulator(str(unbroken / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [
        (line["step"], pytest.approx(line["loss"])) for line in steps
    ]
    assert "validation/mean_rouge" in events.Tags()["scalars"]

    assert {f"time_scales_log10/layer{k:02d}" for k in range(2)} <= set(events.Tags()["histograms"])
    assert {"kernels/kernels_0", "kernels/decay"} <= set(events.Tags()["images"])
    for line in steps:
        parts = [line[f"{part}_seconds"] for part in ("data", "forward", "backward", "optimizer")]
        assert line["seconds"] == pytest.approx(sum(parts))
        assert line["tflops_per_process"] > 0
        assert line["peak_memory_gib"] > 0.05

    status, text = trainer.run(unbroken, *DROPOUT)
    assert status == 0 and "finished" in text, text


def test_a_run_ends_where_validation_gets_no_better(trainer, tmp_path):
    """At a rate of next to nothing Mean ROUGE never changes, so the first validation stays best."""
    still = (
        *("--train.peak_lr", "1e-12", "--train.validation_rouge", "true"),
        *("--train.validate_every", "2", "--train.max_steps", "12"),
    )
    status, text = trainer.run(tmp_path / "run", *still, "--train.early_stopping", "2", processes=1)
    assert status == 0, text
    run = tmp_path / "run"
    assert f"{run} is finished after 6 steps; model: {run}/best\n" in text
    assert max(line["step"] for line in metrics(run)) == 6
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "step-00000006"
    finished = json.loads((tmp_path / "run" / "FINISHED").read_text())
    assert (finished["steps"], finished["best"]["step"]) == (6, 2)
    status, text = trainer.run(tmp_path / "run", *still, "--train.early_stopping", "2", processes=1)
    assert status == 0
    assert f"{run} is finished after 6 steps, of --train.max_steps 12; nothing to do" in text
    status, text = trainer.run(tmp_path / "run", *still, "--train.early_stopping", "4", processes=1)
    assert status == 0, text
    assert max(line["step"] for line in metrics(tmp_path / "run")) == 10


def test_losses_equal_a_plain_loop_in_one_process(trainer, dataset_folder, tmp_path):
    """fp32, two processes, two micro-batches, ZeRO-1 against torch alone: 1e-5."""
    status, text = trainer.run(tmp_path / "run", "--train.precision", "fp32")
    assert status == 0, text
    lines = [line for line in metrics(tmp_path / "run") if "loss" in line]
    for line, (loss, norm) in zip(lines, plain_updates(dataset_folder, len(lines)), strict=True):
        assert line["loss"] == pytest.approx(loss, rel=1e-5)
        assert line["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert len(lines) == 10


def test_a_killed_run_resumed_equals_the_unbroken_one(unbroken, trainer, tmp_path):
    run = tmp_path / "run"
    process = trainer.start(run, *DROPOUT)
    wait_for(run / "checkpoints" / "step-00000004" / "COMPLETE", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # what a kill in the middle of the next save would leave behind
    (run / "checkpoints" / "step-00000008.tmp").mkdir(exist_ok=True)
    (run / "metrics.jsonl").open("a").write('{"step": 9, "lo')
    status, text = trainer.run(run, *DROPOUT)
    assert status == 0, text
    assert metrics(run) == metrics(unbroken)
    assert weights(run) == weights(unbroken)
    assert weights(run, "best") == weights(unbroken, "best")


def test_a_signal_stops_at_a_step_and_the_run_goes_on(unbroken, trainer, tmp_path):
    run = tmp_path / "run"
    process = trainer.start(run, *DROPOUT, processes=1)
    wait_for(run / "metrics.jsonl", process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 85
    assert not (run / "FINISHED").exists()
    status, text = trainer.run(run, *DROPOUT, processes=1)
    assert status == 0, text
    assert [line["step"] for line in metrics(run) if "loss" in line] == [*range(1, 11)]


def test_fine_tuning_starts_from_a_checkpoint(unbroken, trainer, tmp_path):
    start = ("--model.init_from", str(unbroken / "best"), "--train.max_steps", "1",
             "--model.cross_attention_initialisation", "copy")  # draws nothing here  # fmt: skip
    status, text = trainer.run(tmp_path / "run", *start, "--train.peak_lr", "1e-9", processes=1)
    assert status == 0, text
    found = load_model(tmp_path / "run" / "last" / "model").state_dict()
    for name, value in load_model(unbroken / "best" / "model").state_dict().items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=0)

    status, text = trainer.run(tmp_path / "other", *start, "--model.d_ff", "48", processes=1)
    assert status == 2
    assert "error: model.d_ff is 48" in text and "--model.d_ff 32" in text
    assert "Traceback" not in text


def test_another_run_in_the_folder_is_refused(unbroken, trainer, tmp_path):
    status, text = trainer.run(unbroken, *DROPOUT, "--train.seed", "7")
    assert status == 2
    assert "seed was 0, now 7" in text and "Traceback" not in text


def test_another_dropout_or_initialisation_is_told_not_refused(unbroken, trainer, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unbroken, run, symlinks=True)
    more = ("--train.validation_rouge", "true", "--train.picture_every", "5",
            "--train.max_steps", "11",
            "--model.cross_attention_initialisation", "copy")  # fmt: skip
    status, text = trainer.run(run, "--model.dropout", "0.2", *more, processes=1)
    assert status == 0, text
    assert (
        f"{run} resumes after step 10; changed settings: processes was 2, now 1, model.dropout was "
        "0.1, now 0.2, model.cross_attention_initialisation was code, now copy, train.max_steps "
        "was 10, now 11\n"
    ) in text


def test_a_folder_in_use_is_refused(trainer, tmp_path):
    run = tmp_path / "run"
    process = trainer.start(run, "--train.max_steps", "100000", processes=1)
    wait_for(run / "metrics.jsonl", process)
    status, text = trainer.run(run, processes=1)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert status == 2 and "another process trains in this folder" in text


def test_data_that_does_not_fit_ends_in_one_line(
    trainer, dataset_folder, validation_folder, tmp_path
):
    cut_short = tmp_path / "cut-short"
    shutil.copytree(dataset_folder, cut_short)
    tar = sorted(cut_short.glob("*.tar"))[-1]
    tar.write_bytes(tar.read_bytes()[:-512])
    other = tmp_path / "other-tokenizer"
    shutil.copytree(validation_folder, other)
    with (other / "tokenizer.model").open("ab") as file:
        file.write(b"\x12\x00")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["tokenizer"]["sha256"] = file_sha256(other / "tokenizer.model")
    (other / "manifest.json").write_text(json.dumps(manifest))
    for arguments, named in (
        (("--data.train", str(cut_short)), tar.name),
        (("--data.validation", str(other)), "prepare both with one tokenizer"),
        (("--train.batch_size", "1"), "train.batch_size 1 cannot fill 1 processes"),
        (("--model.init_from", str(tmp_path)), "is not a model"),
    ):
        status, text = trainer.run(tmp_path / "run", *arguments, processes=1)
        assert status == 2, text
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and named in errors[0], text
        assert "Traceback" not in text


IMPORTED = """
import sys
import pipeline.training.trainer
import deepspeed.runtime.zero.muon.muon_optimizer  # as every engine does
print(sorted({"matplotlib", "nltk", "torch._inductor.compile_fx"} & sys.modules.keys()))
"""


def test_training_imports_nothing_slow_that_it_may_not_use():
    """Each would cost every process one to two seconds."""
    process = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True
    )
    assert process.stdout.splitlines()[-1] == "[]", process.stderr


def test_three_processes_share_a_batch_that_does_not_divide(trainer, tmp_path):
    """8 samples in 3 x 2 micro-batches: the gradient is that of the whole batch all the same."""
    fp32 = ("--train.precision", "fp32", "--train.max_steps", "3")
    for processes in (1, 3):
        status, text = trainer.run(tmp_path / str(processes), *fp32, processes=processes)
        assert status == 0, text
    for ours, reference in zip(metrics(tmp_path / "3"), metrics(tmp_path / "1"), strict=True):
        for name in {"loss", "gradient_norm", "validation_loss"} & reference.keys():
            assert ours[name] == pytest.approx(reference[name], rel=1e-5)


def test_a_check_is_made_for_the_processes_of_the_job(trainer, tmp_path):
    run = tmp_path / "run"
    checks = {"--dry_run": "ready: 26 training samples", "--check_arguments": "arguments are valid"}
    for check, told in checks.items():
        status, text = trainer.run(run, check, "--processes", "4", processes=1)
        assert status == 0 and told in text, text
        status, text = trainer.run(run, check, "--processes", "5", processes=1)
        assert status == 2 and text.startswith("error: train.batch_size 8 cannot fill 5"), text
        assert not run.exists()
    nowhere = ("--check_arguments", "--data.train", "nowhere", "--model.init_from", "nowhere")
    status, text = trainer.run(run, *nowhere, processes=1)
    assert status == 0, text


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compiled_and_recomputed_blocks_learn_the_same(trainer, tmp_path):
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    fp32 = ("--train.precision", "fp32", "--train.max_steps", "5")
    status, text = trainer.run(plain, *fp32, processes=1)
    assert status == 0, text
    options = ("--train.blocks", "compiled", "--train.recompute_activations", "true")
    status, text = trainer.run(compiled, *fp32, *options, processes=1)
    assert status == 0, text
    assert "blocks: compiled (relative error" in text
    for ours, reference in zip(metrics(compiled), metrics(plain), strict=True):
        for name in {"loss", "gradient_norm", "validation_loss"} & reference.keys():
            assert ours[name] == pytest.approx(reference[name], rel=1e-4)


def test_a_dry_run_checks_the_disk_and_leaves_nothing(trainer, tmp_path, monkeypatch):
    run = tmp_path / "runs" / "run"
    status, text = trainer.run(run, "--dry_run", processes=1)
    assert status == 0 and "ready: 26 training samples" in text, text
    assert not run.exists()
    small = Locost(LocostConfig(vocab_size=40, d_model=8, state_dim=2, d_ff=16, encoder_layers=1,
                                decoder_layers=1, num_heads=2, head_dim=4))  # fmt: skip
    preflight.check_room(tmp_path, small, 3)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
    with pytest.raises(ValueError, match=r"0\.0 GB are free, 3 checkpoints"):
        preflight.check_room(tmp_path, small, 3)
