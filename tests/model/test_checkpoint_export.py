"""Our names and settings as the published code's, and back."""

import json
from pathlib import Path

import pytest
import torch
from locost_golden import published, random_model, settings, tiny_model

from pipeline.model import Locost, LocostConfig
from pipeline.model.published.names import our_name, published_name
from pipeline.model.published.read import import_weights, published_config
from pipeline.model.published.write import export_config, export_weights

BASE = Path(__file__).resolve().parents[2] / "../shared/reference/locost_base_state_dict.json"


def same(ours, reference):
    """Whether the tensors by name are bit-equal."""
    return ours.keys() == reference.keys() and all(
        torch.equal(ours[name], reference[name]) for name in reference
    )


def test_exporting_the_import_gives_the_published_weights_and_settings():
    assert same(export_weights(tiny_model()), published)
    exported = export_config(tiny_model().config)
    assert {name: exported[name] for name in settings} == settings
    assert exported.keys() - settings.keys() == {"num_decoder_layers"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": False, "decoder_layers": 3, "dropout": 0.1, "layer_norm_epsilon": 1e-5},
        {"published_convolution": True, "relative_buckets": 16, "pad_id": 3, "start_id": 3},
    ],
)
def test_importing_the_export_gives_our_model(changes):
    model = random_model(**changes)
    config = published_config(export_config(model.config))
    # The fault is reproduced on request only.
    assert config == LocostConfig(**{**vars(model.config), "published_convolution": False})
    assert export_config(model.config)["use_fast_fft_conv"] is model.config.published_convolution
    weights = export_weights(model)
    assert same(import_weights(config, weights).state_dict(), model.state_dict())
    assert len({tensor.data_ptr() for tensor in weights.values()}) == len(weights)


@pytest.mark.skipif(not BASE.exists(), reason="the list of the base checkpoint's keys is absent")
@pytest.mark.parametrize("tied", [True, False])
def test_keys_shapes_and_settings_of_the_base_checkpoint(tied):
    reference = json.loads(BASE.read_text())
    config = LocostConfig(tie_embeddings=tied)
    with torch.device("meta"):
        weights = export_weights(Locost(config))
    shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    expected = {name: v["shape"] for name, v in reference["tied" if tied else "untied"].items()}
    assert shapes == expected
    assert len(shapes) == 379
    exported = export_config(config) | {"use_fast_fft_conv": True, "tie_word_embeddings": False}
    assert exported.items() <= reference["config"].items()


def test_names_are_one_to_one():
    for name in random_model(tie_embeddings=False).state_dict():
        assert published_name(name) != name
        assert our_name(published_name(name)) == name
    # Published weights have one place each: nothing else may land there.
    for name in (
        "encoder.block.0.layer.0.ssm_layer.kernel.D",
        "encoder.block.x.layer.1.layer_norm.",
    ):
        assert our_name(name) == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotary"}, "positions='rotary'"),
        ({"ssm_directions": "causal"}, "ssm_directions='causal'"),
        ({"ssm_discretisation": "none"}, "ssm_discretisation='none'"),
        ({"ssm_projections": "complex"}, "ssm_projections='complex'"),
    ],
)
def test_variants_that_the_published_code_cannot_express(changes, message):
    with pytest.raises(
        ValueError, match=message + " cannot be expressed in the published configuration"
    ):
        export_config(LocostConfig(**changes))
