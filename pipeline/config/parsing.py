"""From recipe and command line to the configuration of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, set_parsing_settings

from pipeline.baselines.systems import Name
from pipeline.common.command_line import add_checks, program
from pipeline.common.paths import recipe
from pipeline.common.recipe_file import check_recipe, in_plain_words
from pipeline.config.fields import DataConfig, RunConfig, TrainConfig
from pipeline.model import LocostConfig

DEFAULT_RECIPE = "pretrain_c4.yaml"

set_parsing_settings(docstring_parse_attribute_docstrings=True)


@dataclass(frozen=True)
class Check:
    """What to check instead of training: also the `inputs`, for a job of that many `processes`."""

    inputs: bool
    processes: int | None


def build_parser() -> ArgumentParser:
    """The command line of train.py; every field of the dataclasses is a flag."""
    parser = ArgumentParser(
        prog=program("train.py"),
        description="Pre-train or fine-tune LOCOST. Default: the recipe pretrain_c4 with ZeRO-1.",
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument(
        "--config",
        action=ActionConfigFile,
        help="recipe, YAML with any of the fields below: a path, or a shipped one by name "
        "(debug.yaml)",
    )
    parser.add_argument(
        "--deepspeed_config",
        type=str,
        default="ds_configs/zero1.json",
        help="DeepSpeed JSON; a path, or a shipped one by name (zero1.json, zero2.json, "
        "zero2_offload.json, zero3.json)",
    )
    parser.add_argument(
        "--output",
        type=str,
        default="runs/pretrain_c4",
        help="run folder: checkpoints/, tensorboard/, metrics.jsonl, config.yaml; an existing run "
        "is resumed from its last checkpoint",
    )
    add_checks(parser)
    parser.add_argument(
        "--processes",
        type=int | None,
        default=None,
        help="with --dry_run or --check_arguments: the job's number of processes, which one "
        "process checks for",
    )
    parser.add_argument("--local_rank", type=int, default=0, help="set by the deepspeed launcher")
    parser.add_class_arguments(LocostConfig, "model", skip={"vocab_size"}, instantiate=False)
    parser.add_argument(
        "--model.init_from",
        type=str | None,
        default=None,
        help="model folder or checkpoint with the initial weights; null: random initialisation",
    )
    parser.add_argument(
        "--model.baseline",
        type=Name | None,
        default=None,
        help="train this transformers model instead of LOCOST, at its base size unless init_from "
        "or baseline_settings is given; of the other --model.* options only dropout and "
        "cross_attention_initialisation apply",
    )
    parser.add_argument(
        "--model.baseline_settings",
        type=dict[str, Any],
        default={},
        help="fields of the baseline's transformers configuration that differ from its base size: "
        "'{d_model: 512, encoder_layers: 6}'",
    )
    parser.add_class_arguments(DataConfig, "data", instantiate=False)
    parser.add_class_arguments(TrainConfig, "train", instantiate=False)
    return parser


def parse(arguments: Sequence[str]) -> tuple[RunConfig, Check | None]:
    """The run that the arguments describe, and the check to make instead of it.

    Raises ValueError naming the field, the value and the remedy.
    """
    words, given = with_recipes(arguments)
    try:
        values = build_parser().parse_args(words).as_dict()
    except ArgumentError as error:
        at_fault = [name for name in given if not _parses(["--config", str(recipe(name))])]
        problem = ": ".join([*at_fault[:1], in_plain_words(str(error))])
        raise ValueError(f"{problem} (`train.py --help` explains every field)") from None
    for section in ("model", "data", "train"):
        if not isinstance(values[section], dict):
            raise ValueError(
                f"{section} is {values[section]!r}, expected its fields by name; fix the recipe "
                "(`train.py --print_config` shows one)"
            )
    model = values["model"]
    initial = {name: model.pop(name) for name in ("init_from", "baseline", "baseline_settings")}
    config = RunConfig(
        output=values["output"],
        deepspeed_config=values["deepspeed_config"],
        **initial,
        model=model,
        data=DataConfig(**values["data"]),
        train=TrainConfig(**values["train"]),
    )
    config.architecture(LocostConfig.vocab_size)  # its own checks name the impossible field
    return config, _check_of(values)


def _check_of(values: dict[str, Any]) -> Check | None:
    dry_run, arguments, processes = (
        values[name] for name in ("dry_run", "check_arguments", "processes")
    )
    if dry_run and arguments:
        raise ValueError("--dry_run checks what --check_arguments does, and more; give one of them")
    if processes is not None and not (dry_run or arguments):
        raise ValueError(
            f"--processes {processes} is for --dry_run and --check_arguments; a run has as many as "
            "its launcher starts"
        )
    if processes is not None and processes < 1:
        raise ValueError(f"--processes is {processes}, expected at least 1")
    return Check(dry_run, processes) if dry_run or arguments else None


def _parses(words: list[str]) -> bool:
    try:
        build_parser().parse_args(words)
    except ArgumentError:
        return False
    return True


def with_recipes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with the path of each recipe, and the recipes given; without any, the default.

    Raises ValueError for a recipe that does not exist or is not YAML with each field once.
    """
    words = [
        part
        for word in arguments
        for part in (word.split("=", 1) if word.startswith("--config=") else [word])
    ]
    given = [word for option, word in pairwise(words) if option == "--config"]
    if "--config" not in words:
        words = ["--config", DEFAULT_RECIPE, *words]
    for name in given:
        check_recipe(recipe(name))
    paths = [
        str(recipe(word)) if option == "--config" else word
        for option, word in pairwise(["", *words])
    ]
    return paths, given
