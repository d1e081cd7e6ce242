"""Validation: stopped inside, rehearsed at the start, with more processes than samples."""

import os
import signal
import time

import pytest
import torch
from fork_server import living
from trainer_runs import SMALL, metrics, weights

from pipeline.config import parse
from pipeline.data.buckets import bucket
from pipeline.distributed.world import World
from pipeline.inference.decode import load
from pipeline.shards import Dataset
from pipeline.training.callbacks.stop_request import StopRequest
from pipeline.training.validation_set import ValidationSet

ALONE = World(0, 1, 0, torch.device("cpu"))
ENDLESS = ("--train.validation_rouge", "true", "--train.max_new_tokens", "1000000")
OPTIONS = (
    "--train.validate_every", "2", "--train.max_steps", "4", "--train.checkpoint_every", "4",
    "--train.precision", "fp32",
)  # fmt: skip


def ranks(session):
    return [pid for pid in living(session) if pid != session]


@pytest.mark.slow
def test_a_stop_in_a_long_generation_is_honoured_and_the_resumed_run_validates(trainer, tmp_path):
    run, unbroken = tmp_path / "run", tmp_path / "unbroken"
    process = trainer.start(run, *OPTIONS, *ENDLESS, fault="validation:0:2:tell")
    deadline = time.monotonic() + 300
    while "the moment has come" not in process.printed():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)  # it is generating a million tokens
    for rank in ranks(process.pid):
        os.kill(rank, signal.SIGUSR2)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 85 and "stopped after 2 steps: SIGUSR2" in text, text
    assert (run / "last").resolve().name == "step-00000002"
    assert not any("validation_loss" in line for line in metrics(run))

    short = (*OPTIONS, "--train.validation_rouge", "true", "--train.max_new_tokens", "4")
    for output in (run, unbroken):
        status, text = trainer.run(output, *short)
        assert status == 0, text
    assert metrics(run) == metrics(unbroken)
    assert weights(run) == weights(unbroken)


@pytest.mark.slow
def test_zero3_validates_fewer_samples_than_processes(trainer, tmp_path, make_sized_dataset):
    """Both processes gather parameters in every forward pass; one has nothing to validate."""
    one = make_sized_dataset(tmp_path / "one", 5, 1)
    lines = {}
    for zero in ("zero1", "zero3"):
        status, text = trainer.run(
            tmp_path / zero, *OPTIONS, "--train.max_steps", "2", "--data.validation", str(one),
            "--deepspeed_config", f"ds_configs/{zero}.json",
        )  # fmt: skip
        assert status == 0, text
        lines[zero] = metrics(tmp_path / zero)[-1]
    loss = lines["zero1"]["validation_loss"]
    assert lines["zero3"]["validation_loss"] == pytest.approx(loss, rel=1e-5)


def small_config(folder, *more):
    rouge = ("--train.validation_rouge", "true", "--train.validation_batch_size", "3")
    return parse([*SMALL, "--data.train", "x", "--data.validation", str(folder), *rouge, *more])[0]


def test_the_longest_batch_is_rehearsed_and_changes_nothing(validation_folder, checkpoint):
    dataset = Dataset(validation_folder)
    validation = ValidationSet(dataset, small_config(validation_folder), ALONE)
    model, _ = load(checkpoint, ALONE.device)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state, shapes = torch.get_rng_state(), []
    model.train().encoder.register_forward_pre_hook(lambda _, given: shapes.append(given[0].shape))
    validation.rehearse(model, StopRequest())
    longest = max(len(sample.source) for sample in dataset)
    for shape, length in zip(shapes, (bucket(longest), longest), strict=True):  # loss, generation
        assert tuple(shape[:2]) == (3, length)
    assert model.training and torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_empty_validation_set_is_refused(tmp_path, make_sized_dataset):
    empty = make_sized_dataset(tmp_path / "empty", 5, 0)
    with pytest.raises(ValueError, match=r"data.validation .*empty holds no samples"):
        ValidationSet(Dataset(empty), small_config(empty), ALONE)
