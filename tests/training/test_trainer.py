"""The trainer as users start it: real processes, real checkpoints, real event files."""

import json
import os
import shutil
import signal
import time
from types import SimpleNamespace

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainer_runs import SMALL, metrics

from pipeline.data.batches import collate
from pipeline.data.order import GlobalOrder
from pipeline.model import Locost, LocostConfig, load_model
from pipeline.shards import Dataset, file_sha256
from pipeline.training import startup

pytestmark = pytest.mark.slow

DROPOUT = ("--model.dropout", "0.1", "--train.validation_rouge", "true")


def weights(run, name="last"):
    return (run / name / "model" / "model.safetensors").read_bytes()


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
    assert max(line["step"] for line in metrics(tmp_path / "run")) == 6
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "step-00000006"
    finished = json.loads((tmp_path / "run" / "FINISHED").read_text())
    assert (finished["steps"], finished["best"]["step"]) == (6, 2)
    status, text = trainer.run(tmp_path / "run", *still, "--train.early_stopping", "2", processes=1)
    assert status == 0 and "finished after 6 steps" in text
    status, text = trainer.run(tmp_path / "run", *still, "--train.early_stopping", "4", processes=1)
    assert status == 0, text
    assert max(line["step"] for line in metrics(tmp_path / "run")) == 10


def test_losses_equal_a_plain_loop_in_one_process(trainer, dataset_folder, tmp_path):
    """fp32, two processes, two micro-batches, ZeRO-1 against torch alone: 1e-5."""
    status, text = trainer.run(tmp_path / "run", "--train.precision", "fp32")
    assert status == 0, text
    dataset = Dataset(dataset_folder)
    torch.manual_seed(0)
    model = Locost(
        LocostConfig(
            vocab_size=dataset.manifest["tokenizer"]["vocab_size"],
            **{SMALL[k].split(".")[1]: int(SMALL[k + 1]) for k in range(0, len(SMALL), 2)},
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    order = GlobalOrder([[shard.samples for shard in dataset.shards]], 8, 0)
    for step, line in enumerate(line for line in metrics(tmp_path / "run") if "loss" in line):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (5 / max(step + 1, 5)) ** 0.5
        batch = collate([dataset[ref.sample] for ref in order.samples(step)], 0, 0)
        loss = model(batch.input_ids, batch.attention_mask, batch.labels).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert line["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert line["gradient_norm"] == pytest.approx(norm.item(), rel=1e-4)


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
    assert "seed: checkpoint 0, now 7" in text and "Traceback" not in text


def test_another_dropout_or_initialisation_is_told_not_refused(unbroken, trainer, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unbroken, run, symlinks=True)
    more = ("--train.validation_rouge", "true", "--train.max_steps", "11",
            "--model.cross_attention_initialisation", "copy")  # fmt: skip
    status, text = trainer.run(run, "--model.dropout", "0.2", *more, processes=1)
    assert status == 0, text
    assert (
        f"{run} goes on after step 10; changed since: processes 2 -> 1, model.dropout 0.1 -> 0.2, "
        "model.cross_attention_initialisation code -> copy, train.max_steps 10 -> 11\n"
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
        (("--train.batch_size", "7"), "train.batch_size 7 does not divide"),
        (("--model.init_from", str(tmp_path)), "is no model"),
    ):
        status, text = trainer.run(tmp_path / "run", *arguments, processes=1)
        assert status == 2, text
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and named in errors[0], text
        assert "Traceback" not in text


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compiled_and_recomputed_blocks_learn_the_same(trainer, tmp_path):
    """Their lengths are padded to multiples of 256, which no loss may show."""
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    fp32 = ("--train.precision", "fp32", "--train.max_steps", "5")
    status, text = trainer.run(plain, *fp32)
    assert status == 0, text
    options = ("--train.compile", "true", "--train.recompute_activations", "true")
    status, text = trainer.run(compiled, *fp32, *options)
    assert status == 0, text
    for ours, reference in zip(metrics(compiled), metrics(plain), strict=True):
        for name in {"loss", "gradient_norm", "validation_loss"} & reference.keys():
            assert ours[name] == pytest.approx(reference[name], rel=1e-4)
        if "source_fill" in ours:
            assert ours["source_fill"] < 0.5 < reference["source_fill"]


def test_a_dry_run_checks_the_disk_and_leaves_nothing(trainer, tmp_path, monkeypatch):
    run = tmp_path / "runs" / "run"
    status, text = trainer.run(run, "--dry_run", processes=1)
    assert status == 0 and "ready: 26 training samples" in text, text
    assert not run.exists()
    small = Locost(LocostConfig(vocab_size=40, d_model=8, state_dim=2, d_ff=16, encoder_layers=1,
                                decoder_layers=1, num_heads=2, head_dim=4))  # fmt: skip
    startup.check_room(tmp_path, small, 3)
    monkeypatch.setattr(startup.shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
    with pytest.raises(ValueError, match=r"0\.0 GB are free, 3 checkpoints"):
        startup.check_room(tmp_path, small, 3)
