"""Models on disk."""

import json

import pytest
import torch
from locost_golden import error, random_model
from safetensors.torch import load_file, save_file

from pipeline.model import load_model, save_model
from pipeline.model.folder import build_model, check_model

IDS = torch.randint(2, 40, (2, 9))


@pytest.fixture
def folder(tmp_path):
    save_model(random_model(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False, "dropout": 0.1}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_is_bit_equal(tmp_path, changes, dtype):
    model = random_model(**changes).to(dtype)
    (tmp_path / "any.model").write_bytes(b"pieces")
    save_model(model, tmp_path / "new" / "model", tokenizer=tmp_path / "any.model")
    loaded = load_model(tmp_path / "new" / "model")
    assert loaded.config == model.config
    assert not loaded.training
    ours = dict(model.named_parameters())
    for name, parameter in loaded.named_parameters():
        assert parameter.requires_grad
        assert parameter.data_ptr() % 64 == 0  # as torch's own, or products differ in the last bits
        assert torch.equal(parameter, ours.pop(name))
    assert not ours
    assert torch.equal(loaded(IDS).encoder_states, model(IDS).encoder_states)
    files = sorted(path.name for path in (tmp_path / "new" / "model").iterdir())
    assert files == ["config.json", "model.safetensors", "tokenizer.model"]
    assert (tmp_path / "new" / "model" / "tokenizer.model").read_bytes() == b"pieces"


def test_saving_again_replaces_whole_files(folder):
    model = load_model(folder)
    with torch.no_grad():
        model.embedding.weight.zero_()
    (folder / "tokenizer.model").write_bytes(b"pieces")
    save_model(model, folder, tokenizer=folder / "tokenizer.model")
    assert (load_model(folder).embedding.weight == 0).all()
    assert (folder / "tokenizer.model").read_bytes() == b"pieces"


def test_a_failed_save_leaves_the_old_model(folder, tmp_path):
    other = random_model()
    torch.nn.init.zeros_(other.encoder.norm.weight)
    with pytest.raises(FileNotFoundError):
        save_model(other, folder, tokenizer=tmp_path / "absent.model")
    assert (load_model(folder).encoder.norm.weight == 1).all()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_loaded_model_trains(folder):
    model = load_model(folder).train()
    model(IDS, labels=IDS[:, :3]).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_narrow_weights_are_widened(folder):
    weights = load_file(folder / "model.safetensors")
    narrow = {name: tensor.bfloat16() for name, tensor in weights.items()}
    save_file(narrow, folder / "model.safetensors")
    loaded = load_model(folder)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert error(loaded.encoder.blocks[0].ssm.log_dt, weights["encoder.blocks.0.ssm.log_dt"]) < 1e-2


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("decoder.norm.weight"), "missing decoder.norm.weight"),
        (lambda w: w.update(extra=torch.zeros(1)), "surplus extra"),
        (
            lambda w: w.update({"encoder.norm.weight": torch.ones(3)}),
            r"encoder.norm.weight is \(3,\), expected \(16,\)",
        ),
        (
            lambda w: w["encoder.norm.weight"].fill_(torch.nan),
            "NaN or infinity in encoder.norm.weight",
        ),
    ],
)
def test_weights_that_do_not_fit(folder, change, message):
    change_weights(folder, change)
    with pytest.raises(ValueError, match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_configurations_that_do_not_fit(folder):
    change_config(folder, width=3)
    with pytest.raises(ValueError, match="unknown settings: width"):
        load_model(folder)
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in values.items() if k not in ("width", "d_ff")}))
    with pytest.raises(ValueError, match="missing settings: d_ff"):
        load_model(folder)
    change_config(folder, architecture="t5")
    with pytest.raises(ValueError, match=r"architecture 't5', not 'locost'.*convert.py"):
        load_model(folder)
    for text, message in (("{", "not JSON"), ("[" * 10**5, "not JSON"), ("[1]", "not a JSON obj")):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"encoder_layers": 10**6},
            "config.json: encoder_layers=1000000 is impossible: give at most 1000",
        ),
        ({"decoder_layers": 10**9}, "decoder_layers=1000000000 is impossible"),
        ({"d_model": 10**9}, r"d_model=1000000000, and the \d+ tensors have \d+ elements"),
        ({"vocab_size": 10**30}, "vocab_size=1000000000000000000000000000000 is impossible"),
        ({"d_ff": 10**4000}, r"d_ff=10{59} is impossible: give at most 2147483647"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon=inf is impossible"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon=nan is impossible"),
        ({"rotary_base": 10**400}, "rotary_base=10"),
    ],
    ids=str,
)
def test_a_hostile_configuration_is_refused_before_a_model_is_built(
    folder, monkeypatch, changes, message
):
    change_config(folder, **changes)
    monkeypatch.setattr("pipeline.model.folder.Locost", None)  # calling it is a TypeError
    with pytest.raises(ValueError, match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_weights_of_whole_numbers_are_refused(folder, kind):
    change_weights(
        folder, lambda w: w.update({"encoder.norm.weight": w["encoder.norm.weight"].to(kind)})
    )
    with pytest.raises(ValueError, match=r"not floating point: encoder\.norm\.weight"):
        check_model(folder)
    weights = load_file(folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"not floating point: encoder\.norm\.weight"):
        build_model(random_model().config, weights, "weights")


def test_folders_that_are_not_models(folder):
    with pytest.raises(ValueError, match=r"no config.json; give a model folder"):
        load_model(folder / "absent")
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no model.safetensors"):
        load_model(folder)


def test_a_folder_for_transformers_is_named(tmp_path):
    save_model(random_model(), tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "locost", "auto_map": {}}')
    with pytest.raises(ValueError, match="exported for transformers: give the model folder"):
        load_model(tmp_path)


def test_impossible_settings_name_their_file(tmp_path):
    save_model(random_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, said in (
        ({"ssm_directions": "both"}, "config.json: ssm_directions='both' is impossible"),
        ({"foo": 1}, "config.json: unknown settings: foo"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ValueError, match=said):
            load_model(tmp_path)


def test_files_are_as_readable_as_any_new_one(tmp_path):
    save_model(random_model(), tmp_path / "model")
    (tmp_path / "other").touch()
    mode = (tmp_path / "other").stat().st_mode
    assert all(path.stat().st_mode == mode for path in (tmp_path / "model").iterdir())
