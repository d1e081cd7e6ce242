"""A run keeps the attention backend that it chose."""

import json
from types import SimpleNamespace

import pytest
import torch

from pipeline.distributed.world import World
from pipeline.model import Locost, LocostConfig
from pipeline.training import initial_model

ALONE = World(0, 1, 0, torch.device("cpu"))
TINY = {"vocab_size": 40, "d_model": 16, "state_dim": 4, "d_ff": 24, "encoder_layers": 1,
        "decoder_layers": 1, "num_heads": 2, "head_dim": 8}  # fmt: skip


@pytest.fixture
def given(monkeypatch):
    """The names given to `use_attention`, a stand-in: no other backend can run here."""
    names = []

    def choose(decoder, name, device, dtype):
        names.append(name)
        decoder.attention_backend = "varlen" if name == "auto" else name
        return ""

    monkeypatch.setattr(initial_model, "use_attention", choose)
    return names


def test_a_choice_is_made_once_for_the_same_device_and_sizes(given, tmp_path):
    def start(dropout=0.0, name="auto", keep=True):
        train = SimpleNamespace(precision="bf16", attention=name)
        config = SimpleNamespace(output=str(tmp_path), train=train)
        initial_model.set_attention(
            Locost(LocostConfig(**TINY, dropout=dropout)), config, ALONE, keep
        )

    start(keep=False)  # a dry run
    assert not list(tmp_path.iterdir())
    start()
    start()
    start(dropout=0.1)  # other conditions
    start(dropout=0.1, name="sdpa")  # what the user says holds
    file = tmp_path / "attention.json"
    assert json.loads(file.read_text())["backend"] == "sdpa"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({"for": content["for"]}))
    start(dropout=0.1)  # without what it should hold
    assert given == ["auto", "auto", "varlen", "auto", "sdpa", "auto"]
