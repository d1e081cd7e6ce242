"""The replica's command lines, and (soak) a whole replica --quick."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline import evaluate, replica
from pipeline.config import RunConfig, parse
from pipeline.report import parse as parse_report
from pipeline.stages.replica import (
    FINETUNE,
    LOCOST,
    LONGEST,
    PRETRAIN,
    SEEDS,
    SYSTEMS,
    VOCABULARY,
    ReplicaStages,
    open_results,
    pretrain_trials,
    settings,
)

ROOT = Path(__file__).resolve().parents[2]
TRAIN, EVALUATE = (str(ROOT / "pipeline" / f"{name}.py") for name in ("train", "evaluate"))


@pytest.fixture
def stages(tmp_path, monkeypatch) -> ReplicaStages:
    """The replica's stages in an empty folder, as if every search had chosen its last trial."""
    found = ReplicaStages(tmp_path / "replica", tmp_path / "results", quick=False)
    found.results.mkdir()
    monkeypatch.setattr(ReplicaStages, "check_test_set", lambda _: None)
    for system in SYSTEMS:
        chosen = list(pretrain_trials(system).values())[-1]
        search = {
            "pretrain": {"settings": chosen},
            "finetune": {"settings": {"train.peak_lr": 0.001}},
        }
        (tmp_path / f"{system}.json").write_text(json.dumps(search))
        for number, trial in enumerate(pretrain_trials(system)):
            run = found.folder / system / trial / "pretrain"
            run.mkdir(parents=True)
            (run / "metrics.jsonl").write_text(json.dumps({"validation_loss": 9 - number}) + "\n")
    monkeypatch.setattr(ReplicaStages, "search_result", lambda _, name: tmp_path / f"{name}.json")
    return found


def configs_of(stages: ReplicaStages) -> dict[str, RunConfig]:
    """The configuration of every training, by its stage."""
    found = {}
    for stage in [*stages.searches(), *stages.seeds_of_systems()]:
        words = stage.command()
        if TRAIN in words:
            found[stage.name] = parse(words[words.index(TRAIN) + 1 :])[0]
    return found


CHOSEN = ("peak_lr", "embedding_lr_scale", "seed", "max_steps", "validate_every")


@pytest.mark.slow
def test_all_trainings_differ_only_in_system_seed_and_what_the_search_chooses(stages):
    configs = configs_of(stages)
    assert len(configs) == len(SYSTEMS) * (6 + 2 + 2 * len(SEEDS))
    for name, config in configs.items():
        system = next(system for system in SYSTEMS if name.startswith(system))
        assert config.baseline == (None if system == "locost" else system)
        first = configs[name.replace(system, "locost")]
        assert vars(config.data) == vars(first.data)
        theirs, ours = ({k: v for k, v in vars(c.train).items() if k not in CHOSEN}
                        for c in (config, first))  # fmt: skip
        assert theirs == ours
        for field in CHOSEN:
            assert getattr(config.train, field) == getattr(first.train, field), (name, field)
    assert configs["locost-1-finetune"].train.seed == configs["locost-1-pretrain"].train.seed == 1
    assert configs["locost-1-finetune"].model["d_model"] == LOCOST["d_model"]
    assert configs["led-0-pretrain"].baseline_settings == SYSTEMS["led"]


@pytest.mark.slow
def test_every_search_has_the_same_trials(stages):
    configs = configs_of(stages)
    for system in SYSTEMS:
        tried = [
            (
                config.train.peak_lr, config.train.embedding_lr_scale, config.train.max_steps,
                config.model["cross_attention_initialisation"],
            )
            for name, config in configs.items()
            if name.startswith(f"{system}-trial-c")
        ]  # fmt: skip
        assert len(tried) == len(set(tried)) == 6
        if system == "locost":
            first = tried
        assert tried == first
    best = configs["led-trial-rate-0"].init_from
    assert best.endswith("led/trial-copy-2/pretrain/last")  # the lowest validation loss
    assert configs["led-trial-rate-0"].train.max_steps == 150


def test_every_system_is_measured_by_position_too(stages):
    found = [stage.command() for stage in stages.seeds_of_systems() if "evaluate" in stage.name]
    assert len(found) == len(SYSTEMS) * len(SEEDS)
    for command in found:
        options, _ = evaluate.parse(command[command.index(EVALUATE) + 1 :])
        assert options.source_use_by_position and options.source_length == LONGEST
        assert options.precision == "fp32"


def test_everything_has_one_precision(stages):
    """That of the recipes: a choice by machine would make results of two machines differ."""
    recipes = [yaml.safe_load(path.read_text()) for path in (PRETRAIN, FINETUNE)]
    assert [recipe["train"]["precision"] for recipe in recipes] == ["fp32", "fp32"]
    (measure,) = (stage.command() for stage in stages.stages() if stage.name == "measure")
    assert measure[measure.index("--dtype") + 1] == "fp32"


def test_what_has_a_result_is_not_made_again(stages):
    named = {stage.name: stage for stage in stages.stages()}
    assert {"text", "tokenizer", "measure"} <= named.keys()
    for what in ("pretrain", "finetune", "evaluate", "result"):
        assert named[f"led-1-{what}"].result == stages.results / "led-1.json"
    for stage in named.values():
        if stage.result:
            stage.result.touch()
    left = [stage.name for stage in stages.stages() if not (stage.result and stage.result.exists())]
    assert left == []  # no text, no shards


def test_results_of_other_settings_are_refused(tmp_path, capsys):
    open_results(tmp_path, settings(quick=True))
    open_results(tmp_path, settings(quick=True))
    with pytest.raises(SystemExit) as end:
        replica.main(["--output", str(tmp_path / "made"), "--results", str(tmp_path)])
    assert end.value.code == 2
    assert "quick was True, now False; give another --results" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_the_reports_are_called_by_their_arguments(stages):
    options = parse_report([str(word) for word in stages.report()[2:]])
    assert (options.page, options.results) == ("replica", stages.results)
    made = {stage.name: stage.command() for stage in stages.seeds_of_systems()}
    options = parse_report([str(word) for word in made["led-2-result"][2:]])
    assert (options.system, options.seed, options.search) == ("led", 2, False)
    made = {stage.name: stage.command() for stage in stages.searches()}
    options = parse_report([str(word) for word in made["led-search"][2:]])
    assert (options.system, options.seed, options.search) == ("led", None, True)


def test_all_systems_are_of_one_size():
    """3.6 to 3.9 million parameters each, LED's learnt positions left out."""
    from pipeline.baselines.model import Baseline
    from pipeline.baselines.systems import BaselineConfig
    from pipeline.model import Locost, LocostConfig

    models = {
        name: Locost(LocostConfig(vocab_size=VOCABULARY, **sizes))
        if name == "locost"
        else Baseline(BaselineConfig(name=name, vocab_size=VOCABULARY, settings=sizes))
        for name, sizes in SYSTEMS.items()
    }
    count = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    count["led"] -= LONGEST * LOCOST["d_model"]
    assert all(3.55e6 <= n <= 3.95e6 for n in count.values()), count


@pytest.mark.soak
def test_the_quick_replica_writes_its_report_and_continues_from_its_results(tmp_path):
    command = [sys.executable, str(ROOT / "pipeline" / "replica.py"), "--quick"]
    command += ["--results", str(tmp_path / "results"), "--output"]
    finished = subprocess.run([*command, str(tmp_path / "replica")], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    report = (tmp_path / "replica" / "report.md").read_text()
    for name in ("LOCOST", "LongT5", "LED"):
        assert f"| {name}" in report
    assert "| part of the source | LOCOST | LongT5 | LED |" in report
    again = subprocess.run([*command, str(tmp_path / "fresh")], capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("has its result") == 3 * (6 + 2 + 1) + 3 * 4 + 1
    assert (tmp_path / "fresh" / "report.md").read_text() == report
    assert {PRETRAIN.name, FINETUNE.name} == settings(True)["recipes"].keys()
