"""Settings: recipes, overrides, and errors that name the field, the value and the remedy."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline.common.paths import DEEPSPEED_CONFIGS, RECIPES
from pipeline.config import Check, DataConfig, TrainConfig, build_parser, parse
from pipeline.data.planning import accumulations, cut
from pipeline.training.deepspeed_config import deepspeed_settings

DATA = ["--data.train", "somewhere"]


@pytest.mark.parametrize("recipe", sorted(RECIPES.iterdir()), ids=lambda path: path.stem)
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
    config, check = parse([*DATA, "--train.max_steps", "7", "--model.d_model", "64", "--dry_run"])
    assert check == Check(inputs=True, processes=None) and config.train.max_steps == 7
    assert yaml.safe_load(config.to_yaml())["model"]["d_model"] == 64


def test_a_check_may_be_for_another_number_of_processes():
    _, check = parse([*DATA, "--check_arguments", "--processes", "16"])
    assert check == Check(inputs=False, processes=16)
    for words, message in (
        (["--processes", "16"], "--processes 16 is for --dry_run and --check_arguments"),
        (["--processes", "0", "--dry_run"], "--processes is 0, expected at least 1"),
        (["--dry_run", "--check_arguments"], "give one of them"),
    ):
        with pytest.raises(ValueError, match=message):
            parse([*DATA, *words])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--train.max_step", "3"], ["train.max_step"]),
        (["--train.max_steps", "many"], ["train.max_steps", "many", "a whole number"]),
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


@pytest.mark.parametrize("path", sorted(DEEPSPEED_CONFIGS.iterdir()), ids=lambda path: path.stem)
def test_every_shipped_deepspeed_config_is_filled_in(path):
    config, _ = parse([*DATA, "--deepspeed_config", str(path)])
    filled = deepspeed_settings(config, 16)
    assert filled["train_micro_batch_size_per_gpu"] == 16
    assert filled["gradient_accumulation_steps"] == 1  # until the start has chosen
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
        ({"train_micro_batch_size_per_gpu": 3}, "remove 'train_micro_batch_size_per_gpu'"),
        ({"zero_optimization": [1]}, r"zero_optimization is \[1\], expected an object"),
        ({"zero_optimization": {"stage": "1"}}, "stage is '1', expected 1, 2 or 3"),
        ({"zero_optimization": {"stage": 1, "bogus": 3}}, "DeepSpeed refuses it: .*bogus"),
        ({"communication_data_type": "fp3"}, "DeepSpeed refuses it: .*fp3"),
    ],
)
def test_a_contradiction_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        settings(tmp_path, **changes)


@pytest.mark.parametrize("processes", [1, 2, 3, 8, 12, 16, 24, 32, 64])
def test_the_default_recipe_runs_on_any_number_of_processes(processes):
    config, _ = parse(DATA)
    lengths = np.random.default_rng(0).integers(100, 4096, (config.train.batch_size, 2))
    assert config.train.accumulation == 0
    for number in accumulations(256, processes):  # of which the start chooses
        chosen = replace(config, train=replace(config.train, accumulation=number))
        assert deepspeed_settings(chosen, processes)["gradient_accumulation_steps"] == number
        parts = cut(lengths, processes * number)
        assert len(parts) == processes * number and sorted(chain(*parts)) == [*range(256)]


def test_a_batch_too_small_for_its_processes_names_what_fits(tmp_path):
    with pytest.raises(ValueError, match=r"cannot fill 16 processes.*--train\.accumulation 3, or"):
        settings(tmp_path, 16, ["--train.batch_size", "50", "--train.accumulation", "4"])
    with pytest.raises(ValueError, match=r"fewer processes, or --train\.batch_size 16 "):
        settings(tmp_path, 16, ["--train.batch_size", "10", "--train.accumulation", "1"])


@pytest.mark.parametrize("content", [None, "{not json", "[1]"])
def test_a_missing_or_broken_deepspeed_config_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    if content:
        path.write_text(content)
    config, _ = parse([*DATA, "--deepspeed_config", str(path)])
    with pytest.raises(ValueError, match=r"x\.json"):
        deepspeed_settings(config, 1)


@pytest.mark.parametrize(
    "name", ["debug.yaml", "recipes/debug.yaml", "pipeline/recipes/debug.yaml"]
)
def test_a_shipped_recipe_is_found_by_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["--config", name], [f"--config={name}"]):
        assert parse([*words, *DATA])[0].train.max_steps == 50
    (tmp_path / "debug.yaml").write_text("train: {max_steps: 3}\n")  # the user's own comes first
    assert parse(["--config", "debug.yaml", *DATA])[0].train.max_steps == 3


@pytest.mark.parametrize("name", ["zero2.json", "ds_configs/zero2.json"])
def test_a_shipped_deepspeed_config_is_found_by_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, _ = parse([*DATA, "--deepspeed_config", name])
    assert deepspeed_settings(config, 1)["zero_optimization"]["stage"] == 2
    assert config.deepspeed_config == name  # as given, on every machine


@pytest.mark.parametrize("name", ["zero9.json", "elsewhere/zero1.json", "/nowhere/zero1.json", "."])
def test_another_deepspeed_config_is_refused_with_the_known_names(name):
    config, _ = parse([*DATA, "--deepspeed_config", name])
    with pytest.raises(
        ValueError, match=r"no such file; give a path, or one of zero1\.json, zero2"
    ):
        deepspeed_settings(config, 1)


def test_another_recipe_is_refused_with_the_known_names():
    with pytest.raises(
        ValueError, match=r"--config elsewhere/debug\.yaml: no such file.*debug\.yaml"
    ):
        parse(["--config", "elsewhere/debug.yaml", *DATA])


def test_help_names_the_technique():
    printed = build_parser().format_help()
    assert "Gradient (activation) checkpointing" in printed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"r\.yaml is empty, expected fields by name"),
        (b"- train\n", r"r\.yaml holds a list, expected fields by name"),
        (b"words", r"r\.yaml holds a text, expected fields by name"),
        (b"train: {max_steps: 3\n", r"r\.yaml is not YAML in line 2: "),
        (b"\xff\xfe\x00", r"r\.yaml is not text \(byte 0\), expected YAML"),
        (
            b"train:\n  max_steps: 3\n  seed: 1\n  max_steps: 4\n",
            r"r\.yaml gives train\.max_steps twice, in lines 2 and 4; remove one",
        ),
        (b"output: a\noutput: b\n", r"r\.yaml gives output twice, in lines 1 and 2"),
        (
            b"train:\n  max_steps: x\n",
            r"r\.yaml: train\.max_steps is x, expected a whole number \(",
        ),
        (
            b"train:\n  schedule: cubic\n",
            r"r\.yaml: train\.schedule is cubic, expected one of inverse",
        ),
    ],
)
def test_a_recipe_that_cannot_be_read_is_named(tmp_path, content, said):
    (tmp_path / "r.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=said):
        parse(["--config", str(tmp_path / "r.yaml")])


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (("--train.batch_size", "x"), r"^train\.batch_size is x, expected a whole number \("),
        (("--train.nothing", "3"), r"^unrecognized arguments: --train\.nothing 3"),
    ],
)
def test_a_wrong_flag_is_not_the_recipes_fault(flag, said):
    with pytest.raises(ValueError, match=said):
        parse(["--config", "debug.yaml", *flag])


def test_sources_shared_by_processes_exclude_baselines():
    shared, baseline = ["--train.sequence_parallel_size", "2"], ["--model.baseline", "t5"]
    said = "which only LOCOST has, with --model.baseline t5"
    with pytest.raises(ValueError, match=f"train.sequence_parallel_size is 2, {said}"):
        parse([*DATA, *baseline, *shared])
    parse([*DATA, *baseline])
    rouge = ["--data.validation", "elsewhere", "--train.validation_rouge", "true"]
    assert parse([*DATA, *rouge, *shared])[0].train.validation_rouge  # in the same groups


def test_processes_that_share_sources_count_as_one():
    config, _ = parse([*DATA, "--train.batch_size", "8", "--train.sequence_parallel_size", "4"])
    config = replace(config, train=replace(config.train, accumulation=4))
    assert deepspeed_settings(config, 8)["train_micro_batch_size_per_gpu"] == 1
    with pytest.raises(ValueError, match=r"cannot fill 4 groups of processes x .* = 16 micro"):
        deepspeed_settings(config, 16)
    with pytest.raises(ValueError, match=r"_size 4 does not divide the 6 processes; start a mult"):
        deepspeed_settings(config, 6)
