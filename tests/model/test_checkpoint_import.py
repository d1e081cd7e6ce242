"""Published names and settings as ours."""

import json
from pathlib import Path

import pytest
import torch
from locost_golden import published, settings

from pipeline.model import Locost, LocostConfig
from pipeline.model.published.read import (
    deduced_config,
    import_weights,
    our_name,
    published_config,
)

BASE = Path(__file__).resolve().parents[2] / "../shared/reference/locost_base_state_dict.json"


def test_settings():
    tiny = LocostConfig(
        vocab_size=64,
        d_model=32,
        state_dim=8,
        d_ff=64,
        encoder_layers=2,
        decoder_layers=2,
        num_heads=4,
        head_dim=8,
    )
    assert published_config(settings) == tiny
    assert deduced_config(published) == tiny
    fewer = published_config({**settings, "num_decoder_layers": 1})
    assert (fewer.encoder_layers, fewer.decoder_layers) == (2, 1)
    untied = {**published, "lm_head.weight": torch.zeros(64, 32)}
    assert not deduced_config(untied).tie_embeddings


@pytest.mark.skipif(not BASE.exists(), reason="the list of the base checkpoint's keys is absent")
@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_of_the_base_checkpoint(tied):
    reference = json.loads(BASE.read_text())
    shapes = {
        name: tuple(v["shape"]) for name, v in reference["tied" if tied else "untied"].items()
    }
    config = published_config({**reference["config"], "tie_word_embeddings": tied})
    assert config == LocostConfig(tie_embeddings=tied)
    with torch.device("meta"):
        ours = {name: tuple(p.shape) for name, p in Locost(config).named_parameters()}
        weights = {name: torch.empty(shape) for name, shape in shapes.items()}
    copies = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    copies |= {"lm_head.weight"} if tied else set()
    renamed = {our_name(name): shape for name, shape in shapes.items() if name not in copies}
    assert renamed == ours
    assert len(shapes) == 379 == len(renamed) + len(copies)
    del weights["lm_head.weight"]
    assert deduced_config(weights) == LocostConfig()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_state": 15}, "d_state=15 must be an even number"),
        ({"bidirectional": False}, "bidirectional=False is another architecture; expected True"),
        ({"num_ssm_heads": 2}, "num_ssm_heads=2"),
        ({"d_model": "32"}, "d_model='32'"),
    ],
)
def test_settings_of_other_architectures(change, message):
    with pytest.raises(ValueError, match=message):
        published_config({**settings, **change})


def test_missing_settings_are_named():
    with pytest.raises(ValueError, match="it lacks d_kv, d_state;"):
        published_config({k: v for k, v in settings.items() if k not in ("d_kv", "d_state")})


def test_tied_is_the_default_of_a_published_configuration():
    without = {k: v for k, v in settings.items() if k != "tie_word_embeddings"}
    assert published_config(without).tie_embeddings


@pytest.mark.parametrize(
    "name", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
)
def test_copies_of_the_embedding(name):
    config = published_config(settings)
    without = {key: tensor for key, tensor in published.items() if key != name}
    import_weights(config, without)
    with pytest.raises(ValueError, match=f"{name} differs from shared.weight"):
        import_weights(config, {**published, name: published[name] + 1})


def test_keys_are_used_once():
    config = published_config(settings)
    with pytest.raises(ValueError, match=r"surplus encoder.block.0.extra"):
        import_weights(config, {**published, "encoder.block.0.extra": torch.zeros(1)})
    key = "decoder.block.1.layer.1.EncDecAttention.k.weight"
    with pytest.raises(ValueError, match=r"missing decoder.blocks.1.cross_attention.k.weight"):
        import_weights(config, {k: v for k, v in published.items() if k != key})
    with pytest.raises(ValueError, match=r"is \(3,\), expected \(32,\)"):
        import_weights(config, {**published, "encoder.final_layer_norm.weight": torch.ones(3)})
    with pytest.raises(ValueError, match=r"missing shared.weight"):
        import_weights(config, {k: v for k, v in published.items() if k != "shared.weight"})
