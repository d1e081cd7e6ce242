"""Settings: recipes, overrides, and errors that name the field, the value and the remedy."""

import json
from pathlib import Path

import pytest
import yaml

from pipeline.config import ROOT, DataConfig, TrainConfig, build_parser, parse
from pipeline.deepspeed_config import deepspeed_settings

DATA = ["--data.train", "somewhere"]
RECIPES = sorted((ROOT / "pipeline" / "recipes").glob("*.yaml"))
JSONS = sorted((ROOT / "ds_configs").glob("*.json"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_read_and_names_no_data_and_no_vocabulary(recipe):
    config, _ = parse(["--config", str(recipe), *DATA, "--data.validation", "elsewhere"])
    values = yaml.safe_load(recipe.read_text())
    for section in ("model", "data", "train"):
        shown = config.as_dict()[section]
        given = values.get(section, {})
        assert {name: shown[name] for name in given} == given
    assert "vocab_size" not in values["model"]
    assert not {"train", "validation"} & values.get("data", {}).keys()


def test_no_arguments_means_the_paper_s_pretraining():
    config, _ = parse(DATA)
    assert (config.train.max_steps, config.train.batch_size) == (1_000_000, 256)
    assert (config.data.source_length, config.data.target_length) == (4096, 910)
    assert config.architecture(32_100).state_dim == 256
    assert config.deepspeed_config == "ds_configs/zero1.json"


def test_without_data_one_line_says_which_command_makes_it():
    with pytest.raises(ValueError, match=r"--data\.train DIR.*python -m preprocessing\.pretrain"):
        parse([])


def test_the_command_line_overrides_and_the_result_is_kept():
    config, dry_run = parse([*DATA, "--train.max_steps", "7", "--model.d_model", "64", "--dry_run"])
    assert dry_run and config.train.max_steps == 7
    assert yaml.safe_load(config.to_yaml())["model"]["d_model"] == 64


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--train.max_step", "3"], ["train.max_step"]),
        (["--train.max_steps", "many"], ["train.max_steps", "many", "int"]),
        (["--train.precision", "fp16"], ["train.precision", "fp16", "bf16"]),
        (["--config", "nowhere.yaml"], ["config", "nowhere.yaml"]),
    ],
)
def test_an_unknown_setting_is_named_with_its_value(arguments, named):
    with pytest.raises(ValueError) as raised:
        parse([*DATA, *arguments])
    message = str(raised.value)
    assert all(word in message for word in named)
    assert "\n" not in message


def test_an_unknown_field_of_a_recipe_is_named(tmp_path):
    recipe = tmp_path / "typo.yaml"
    recipe.write_text("train:\n  learning_rate: 0.1\n")
    with pytest.raises(ValueError, match="learning_rate"):
        parse([*DATA, "--config", str(recipe)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train.batch_size", "0"], r"train\.batch_size is 0, expected at least 1"),
        (["--train.peak_lr", "-1"], r"train\.peak_lr is -1\.0, expected a number above 0"),
        (["--train.betas", "[0.9, 1.0]"], r"train\.betas is \[0\.9, 1\.0\]"),
        (["--data.source_length", "1"], r"data\.source_length is 1, expected at least 2"),
        (["--model.dropout", "1.5"], "dropout"),
        (["--model.d_model", "0"], "d_model"),
    ],
)
def test_an_impossible_value_is_a_value_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        parse([*DATA, *arguments])


def test_help_explains_every_field(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for group, section in (("data", DataConfig), ("train", TrainConfig)):
        for name in section.__dataclass_fields__:
            flag = f"--{group}.{name} "
            assert flag in printed
            explained = printed.split(flag)[-1].split("(type:")[0]
            assert len(explained.split()) > 3, f"{flag} is not explained"


def test_print_config_is_a_recipe_again(capsys, tmp_path):
    with pytest.raises(SystemExit):
        parse([*DATA, "--train.max_steps", "7", "--print_config"])
    again = tmp_path / "again.yaml"
    again.write_text(capsys.readouterr().out)
    config, _ = parse(["--config", str(again)])
    assert config.train.max_steps == 7 and config.data.train == "somewhere"


@pytest.mark.parametrize("content", ["train: 5\n", "model: null\n", "- a\n", "data: {train: 3}: 4"])
def test_a_recipe_of_another_form_is_one_error(tmp_path, content):
    recipe = tmp_path / "odd.yaml"
    recipe.write_text(content)
    with pytest.raises(ValueError):
        parse(["--config", str(recipe), *DATA])


def settings(tmp_path: Path, world: int = 2, arguments=(), **changes):
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}, **changes}))
    config, _ = parse([*DATA, "--deepspeed_config", str(path), *arguments])
    return deepspeed_settings(config, world)


@pytest.mark.parametrize("path", JSONS, ids=lambda path: path.stem)
def test_every_shipped_deepspeed_config_is_filled_in(path):
    config, _ = parse([*DATA, "--deepspeed_config", str(path)])
    filled = deepspeed_settings(config, 16)
    assert filled["train_batch_size"] == 256
    assert filled["gradient_accumulation_steps"] == 2
    assert filled["gradient_clipping"] == 1.0
    assert filled["torch_autocast"]["enabled"]
    assert filled["torch_autocast"]["dtype"] == "bfloat16"
    assert filled["communication_data_type"] == filled["data_types"]["grad_accum_dtype"] == "fp32"


@pytest.mark.parametrize(("communicated", "modules"), [("fp32", []), ("bf16", ["torch.nn.Linear"])])
def test_gradients_are_reduced_in_the_type_that_the_json_names(tmp_path, communicated, modules):
    filled = settings(tmp_path, communication_data_type=communicated)
    assert filled["torch_autocast"]["lower_precision_safe_modules"] == modules


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zero_optimization": {"stage": 0}}, "stage is 0.*zero1"),
        ({"bf16": {"enabled": True}}, "bf16.enabled casts"),
        ({"optimizer": {"type": "AdamW"}}, "remove 'optimizer'"),
        ({"train_batch_size": 64}, "train_batch_size is 64, the recipe says 256"),
        ({"gradient_clipping": 0.5}, r"gradient_clipping is 0\.5, the recipe says 1\.0"),
    ],
)
def test_a_contradiction_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        settings(tmp_path, **changes)


def test_a_batch_that_does_not_divide_names_sizes_that_do(tmp_path):
    with pytest.raises(ValueError, match=r"batch_size 10 does not divide.*8 or --.*12|8 or 12"):
        settings(tmp_path, arguments=["--train.batch_size", "10"])


@pytest.mark.parametrize("content", [None, "{not json"])
def test_a_missing_or_broken_deepspeed_config_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    if content:
        path.write_text(content)
    config, _ = parse([*DATA, "--deepspeed_config", str(path)])
    with pytest.raises(ValueError, match=r"x\.json"):
        deepspeed_settings(config, 1)
