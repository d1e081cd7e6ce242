"""Baselines that start by copying: which weights are equal, and what that does."""

import pytest
import torch
from small_systems import HERE, SMALL
from torch.testing import assert_close

from pipeline.baselines.model import Baseline
from pipeline.baselines.systems import BaselineConfig
from pipeline.config import parse
from pipeline.data.mixture import Mixture
from pipeline.training.copy_initialisation import PROJECTIONS
from pipeline.training.initial_model import starting_model


def cross_attentions(model: Baseline) -> list[list[torch.nn.Linear]]:
    return [
        [getattr(module, name) for name in PROJECTIONS[path.rpartition(".")[2]]]
        for path, module in model.network.named_modules()
        if path.rpartition(".")[2] in PROJECTIONS
    ]


def built(folder, name: str, how: str) -> Baseline:
    words = ["--data.train", str(folder), "--output", "unused", "--model.baseline", name]
    words += ["--model.baseline_settings", str(SMALL[name]).replace("'", '"')]
    config, _ = parse([*words, "--model.cross_attention_initialisation", how])
    return starting_model(config, Mixture(config.data), None)


@pytest.mark.parametrize("name", HERE)
def test_queries_are_keys_and_outputs_are_what_was_attended(dataset_folder, name):
    model, usual = (built(dataset_folder, name, how) for how in ("copy", "code"))
    layers = cross_attentions(model)
    assert len(layers) == 2
    for q, k, v, o in layers:
        assert_close(q.weight, k.weight)
        assert_close(v.weight @ v.weight.t(), torch.eye(16))
        assert_close(o.weight, v.weight.t())
        assert all(layer.bias is None or not layer.bias.any() for layer in (q, k, v, o))
    for q, k, v, o in cross_attentions(usual):
        assert not torch.equal(q.weight, k.weight)
        assert not torch.equal(o.weight, v.weight.t())
    before = dict(usual.named_parameters())
    changed = [
        name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])
    ]
    assert len(changed) == 2 * 3  # not k


def test_a_model_without_cross_attention_is_refused(monkeypatch):
    from pipeline.training import copy_initialisation

    model = Baseline(BaselineConfig(name="t5", vocab_size=64, settings=SMALL["t5"]))
    monkeypatch.setattr(copy_initialisation, "PROJECTIONS", {"nowhere": ()})
    with pytest.raises(ValueError, match="is not known for t5; leave it out"):
        copy_initialisation.initialise_to_copy(model)
