"""Every recipe: its labels, the paper's values, and two updates at a tiny size."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from recipe_matrix import CASES
from trainer_runs import SMALL, metrics

from pipeline.common.paths import ROOT
from pipeline.config import TrainConfig, parse
from pipeline.distributed.world import free_port
from pipeline.training.schedule import learning_rate, steps_of

FOLDER = ROOT / "pipeline" / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))
PAPER = ROOT / "../shared/reference/paper_tables.json"
# The paper's source and target lengths and training samples, by set.
SETS = {
    "arxiv": (4096, 512, 203_037),
    "pubmed": (4096, 512, 119_924),
    "booksum_chapter": (8192, 512, 9_600),
    "govreport": (16384, 1024, 17_457),
    "summscreenfd": (16384, 512, 3_673),
    "booksum_book": (32768, 1024, 314),
}


def read(name: str, *more: str):
    folders = ["--data.train", "somewhere", "--data.validation", "elsewhere"]
    config, _ = parse(["--config", str(FOLDER / f"{name}.yaml"), *folders, *more])
    return config


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_value_says_where_it_is_from(recipe):
    values = [line for line in recipe.read_text().splitlines() if re.match(r" +\w+: ", line)]
    assert values
    for value in values:
        assert re.search(r" # (paper|code|ours)\b", value), f"{recipe.name}: {value}"


COMMANDS = {
    recipe.stem: shlex.split(line[1:])
    for recipe in RECIPES
    for line in recipe.read_text().splitlines()
    if line.startswith("#     ")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_in_a_recipe_runs(
    name, trainer, unbroken, dataset_folder, validation_folder, tmp_path, monkeypatch
):
    """In a folder that has what it names: a pre-training as train.py leaves it, and shards."""
    launcher, program, *words = COMMANDS[name]
    assert (launcher, program) == ("deepspeed", "pipeline/train.py")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "pretrain_c4").symlink_to(unbroken)
    (tmp_path / "shards").mkdir()
    for word in words:
        if word.startswith("shards/"):
            kind = validation_folder if word.endswith("validation") else dataset_folder
            (tmp_path / word).symlink_to(kind)
    monkeypatch.chdir(tmp_path)
    shared = read(name).train.sequence_parallel_size
    job = ["--processes", str(shared)] if shared > 1 else []
    status, text = trainer.server.run_in_one([*words, *SMALL, "--dry_run", *job])
    assert status == 0, text


def test_pretraining_has_the_papers_values():
    if not PAPER.exists():
        pytest.skip(f"{PAPER} is not there")
    expected = json.loads(PAPER.read_text())["hyperparameters"]
    config = read("pretrain_c4")
    model = config.architecture(expected["vocab_size"])
    found = {
        **{name: getattr(model, name, None) for name in expected},
        "decoder_heads": model.num_heads,
        "layer_norm_eps": model.layer_norm_epsilon,
        "adam_betas": list(config.train.betas),
        "weight_decay": config.train.weight_decay,
        "warmup_steps": config.train.warmup_steps,
        "pretrain_steps": config.train.max_steps,
        "source_length": config.data.source_length,
        "target_length": config.data.target_length,
    }
    fine_tuning = read("finetune_arxiv")
    found["finetune_lr"] = fine_tuning.train.peak_lr
    found["finetune_dropout"] = fine_tuning.model["dropout"]
    expected.pop("gsg_ratio")  # preprocessing's
    assert {name: found[name] for name in expected} == expected


def test_t5s_peak_is_all_that_differs():
    ours, t5 = (read(name).as_dict() for name in ("pretrain_c4", "pretrain_c4_t5lr"))
    assert (ours["train"].pop("peak_lr"), t5["train"].pop("peak_lr")) == (0.02, 0.01)
    assert ours == t5


@pytest.mark.parametrize("name", SETS)
def test_fine_tuning_has_the_papers_lengths_and_epochs(name):
    source, target, samples = SETS[name]
    config = read(f"finetune_{name}")
    assert (config.data.source_length, config.data.target_length) == (source, target)
    assert config.train.max_new_tokens == target
    assert (config.train.schedule, config.train.peak_lr) == ("constant", 5e-4)
    assert config.train.validation_rouge
    epochs = 100 if name == "booksum_book" else 60
    assert steps_of(config.train, samples) == -(-epochs * samples // 128)
    assert bool(config.train.early_stopping) == (name != "booksum_book")
    if config.train.early_stopping:  # about one validation an epoch
        assert config.train.validate_every == pytest.approx(samples / 128, rel=0.07)


def test_whole_books_are_those_of_the_papers_recipe_without_truncation():
    """The GPUs of a node share each, and blocks are recomputed; the rest is the same."""
    paper, ours = (read(f"finetune_booksum_book{name}").as_dict() for name in ("", "_whole"))
    differs = {
        name: (paper[part][name], value)
        for part in ("model", "data", "train")
        for name, value in ours[part].items()
        if paper[part].get(name) != value
    }
    assert differs == {
        "source_length": (32768, 0),
        "accumulation": (8, 0),
        "sequence_parallel_size": (1, 8),
        "recompute_activations": (False, True),
    }


def test_the_sweep_over_contexts_sets_one_value():
    lengths = [2**k for k in range(10, 16)]
    for length in lengths:
        config = read("finetune_booksum_book", "--data.source_length", str(length))
        assert config.data.source_length == length


def test_recipes_are_composed_the_later_one_holds():
    added = read("pretrain_c4", "--config", str(FOLDER / "as_printed.yaml"))
    assert added.model["ssm_projections"] == "complex"
    assert (added.train.accumulation, added.data.source_length) == (0, 4096)
    small = read("finetune_pubmed", "--config", str(FOLDER / "debug.yaml"))
    assert small.model["d_model"] == 32 and small.train.validation_rouge
    assert small.data.source_length == 64


@pytest.mark.parametrize(
    ("epochs", "max_steps", "samples", "expected"),
    [(0, 70, 1000, 70), (3, 1000, 100, 38), (3, 20, 100, 20), (1, 1000, 8, 1), (1, 1000, 9, 2)],
)
def test_epochs_become_steps(epochs, max_steps, samples, expected):
    train = TrainConfig(max_epochs=epochs, max_steps=max_steps, batch_size=8)
    assert steps_of(train, samples) == expected


def test_early_stopping_needs_something_to_validate_on():
    recipe = str(FOLDER / "finetune_arxiv.yaml")
    with pytest.raises(ValueError, match=r"early_stopping is 5.*--data\.validation DIR"):
        parse(["--config", recipe, "--data.train", "somewhere"])


@pytest.mark.slow
def test_every_recipe_and_every_configuration_takes_two_steps(
    dataset_folder, validation_folder, tmp_path
):
    launcher = [str(Path(sys.executable).with_name("deepspeed")), "-q", "--master_port"]
    finished = subprocess.run(
        [
            *(*launcher, str(free_port()), "--num_accelerators", "2"),
            *(str(Path(__file__).with_name("recipe_matrix.py")), str(tmp_path), *SMALL),
            *("--data.train", str(dataset_folder), "--data.validation", str(validation_folder)),
            *("--train.max_steps", "2", "--train.validate_every", "2"),
            *("--train.validation_samples", "2", "--train.max_new_tokens", "2"),
        ],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for recipe, configuration in CASES:
        run = tmp_path / f"{recipe}-{configuration}"
        steps = [line for line in metrics(run) if "loss" in line]
        kept = yaml.safe_load((run / "config.yaml").read_text())
        given = TrainConfig(**{**kept["train"], "betas": tuple(kept["train"]["betas"])})
        assert [line["lr"] for line in steps] == [learning_rate(step, given) for step in (0, 1)]
        assert all(0 < line["loss"] < 50 for line in steps), (run.name, steps)
