"""Callbacks by themselves: the record that a resumed run cuts back, the order of the hooks."""

import inspect
import json
from types import SimpleNamespace

import pytest
import torch

from pipeline.distributed.world import World
from pipeline.training.callbacks.base import Callback
from pipeline.training.callbacks.recorder import NoRecorder, Recorder
from pipeline.training.state import TrainingState
from pipeline.training.trainer import Trainer

ALONE = World(0, 1, 0, torch.device("cpu"))


def train_line(step: int) -> dict[str, float]:
    return {"step": step, "loss": 2.0}


def validation_line(step: int) -> dict[str, float]:
    return {"step": step, "validation_loss": 3.0}


KEPT = [train_line(5), validation_line(5), train_line(10), validation_line(10)]


@pytest.mark.parametrize(
    ("progress", "kept"),
    [
        ({}, KEPT),  # written after its validation, as all were before `validated` was saved
        ({"validated": 10}, KEPT),
        ({"validated": 5}, KEPT[:3]),  # killed before it was noted that step 10 is validated
    ],
)
def test_a_resumed_record_ends_at_its_checkpoint(tmp_path, run_config, progress, kept):
    lines = [train_line(5), validation_line(5), train_line(10), validation_line(10), train_line(11)]
    written = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(written + '{"step": 12, "lo')
    recorder = Recorder()
    recorder.load_state(progress)
    recorder.open_files(TrainingState(run_config, ALONE, tmp_path, step=10))
    recorder.close()
    found = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in found] == kept


def test_other_ranks_record_nothing(tmp_path, run_config):
    recorder = NoRecorder()
    recorder.open_files(TrainingState(run_config, ALONE, tmp_path))
    recorder.describe("config", "text")
    recorder.validation(1, {"loss": 1.0}, ["summary"])
    with recorder.recording():
        recorder.flush()
    recorder.close()
    assert not list(tmp_path.iterdir())


def test_a_callback_without_hooks_changes_nothing(tmp_path, run_config):
    plain, state = Callback(), TrainingState(run_config, ALONE, tmp_path)
    before = repr(state)
    for name, hook in inspect.getmembers(plain, inspect.ismethod):
        arguments = [state] * len(inspect.signature(hook).parameters)
        assert hook(*arguments) in (None, {}, name == "wants_update"), name
    assert repr(state) == before


def test_the_loop_names_only_hooks_that_exist():
    source = inspect.getsource(Trainer)
    names = [part.split('"')[0] for part in source.split('notify("')[1:]]
    assert len(names) > 8
    assert all(callable(getattr(Callback, name)) for name in names)


def test_the_loop_and_the_step_fit_a_screen():
    for function, most in ((Trainer.fit, 50), (Trainer._step, 40)):
        assert len(inspect.getsource(function).splitlines()) <= most


def test_a_misspelt_hook_is_refused():
    with pytest.raises(TypeError, match=r"has no hook after_step; give one of .*after_update"):

        class Misspelt(Callback):
            def after_step(self, state):
                pass


def test_a_class_in_place_of_a_callback_is_refused(run_config):
    prepared = SimpleNamespace(
        checkpoints=None, validation=None, model=SimpleNamespace(config=None)
    )
    with pytest.raises(TypeError, match="is not a Callback; give instances"):
        Trainer(run_config, prepared, ALONE, None, [NoRecorder])
