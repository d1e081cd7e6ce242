"""What a run chooses by trial is chosen once, by rank 0, and kept."""

import json
from types import SimpleNamespace

import pytest
import torch

from pipeline.common.files import read_object
from pipeline.config import TrainConfig
from pipeline.distributed.world import World
from pipeline.model import Locost, LocostConfig
from pipeline.model.ssm import ssm_layers
from pipeline.training import choices

ALONE = World(0, 1, 0, torch.device("cpu"))
TINY = {"vocab_size": 40, "d_model": 16, "state_dim": 4, "d_ff": 24, "encoder_layers": 2,
        "decoder_layers": 1, "num_heads": 2, "head_dim": 8}  # fmt: skip


def start(folder, *, world=ALONE, stage=1, keep=True, dropout=0.0, **train):
    """A run's choices: its model afterwards."""
    config = SimpleNamespace(output=str(folder), train=TrainConfig(precision="fp32", **train))
    model = Locost(LocostConfig(**TINY, dropout=dropout))
    choices.set_choices(model, config, world, stage, keep)
    return model


@pytest.fixture
def given(monkeypatch):
    """The names given to `use_attention`, a stand-in: no other backend can run here."""
    names = []

    def choose(decoder, name, device, dtype):
        names.append(name)
        decoder.attention_backend = "varlen" if name == "auto" else name
        return decoder.attention_backend, ""

    monkeypatch.setattr(choices, "use_attention", choose)
    return names


def test_a_choice_is_made_once_for_the_same_device_and_sizes(given, tmp_path):
    start(tmp_path, keep=False)  # a dry run
    assert not list(tmp_path.iterdir())
    start(tmp_path)
    start(tmp_path)
    start(tmp_path, dropout=0.1)  # other conditions
    start(tmp_path, dropout=0.1, attention="sdpa")  # what the user says holds
    file = tmp_path / "choices.json"
    content = json.loads(file.read_text())
    assert content["attention"]["chosen"] == "sdpa"
    del content["attention"]["chosen"]
    file.write_text(json.dumps(content))
    start(tmp_path, dropout=0.1)  # without what it should hold
    assert given == ["auto", "auto", "varlen", "auto", "sdpa", "auto"]


def test_all_choices_are_printed_kept_and_applied(tmp_path, capsys):
    model = start(tmp_path, fft="pairs")
    kept = {name: entry["chosen"] for name, entry in read_object(tmp_path / "choices.json").items()}
    assert kept == {"attention": "sdpa", "kernel_build": "torch", "fft": "pairs", "blocks": "eager"}
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines] == [f"{name}: {kept[name]}" for name in kept]
    assert "not triton: " in lines[1] and "not compiled: compiling takes minutes" in lines[3]
    assert [layer.transform for layer in ssm_layers(model)] == ["pairs", "pairs"]
    auto = start(tmp_path)  # as it was chosen
    assert [layer.transform for layer in ssm_layers(auto)] == ["pairs", "pairs"]


def test_other_ranks_are_told(monkeypatch, tmp_path):
    """Rank 1 of two, whose collectives are stand-ins: real ones are in the tests of stages."""
    monkeypatch.setattr(World, "broadcast", lambda self, value: told.pop(0))
    monkeypatch.setattr(World, "attempt", lambda self, action, *errors: (action(), []))
    told = ["sdpa", "torch", "pairs", "eager"]
    model = start(tmp_path, world=World(1, 2, 1, torch.device("cpu")))
    assert not told and {layer.transform for layer in ssm_layers(model)} == {"pairs"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"kernel_build": "triton"}, "kernel build triton is not available: .*kernel_build torch"),
        ({"blocks": "compiled", "stage": 3}, "gathers parameters inside the blocks.*blocks eager"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(setting, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        start(tmp_path, **setting)
