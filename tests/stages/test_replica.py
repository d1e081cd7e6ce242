"""The replica's command lines, and (soak) a whole replica --quick."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import evaluate
from pipeline.config import parse
from pipeline.stages.replica import (
    FINETUNE,
    LOCOST,
    PRETRAIN,
    SEEDS,
    SYSTEMS,
    VOCABULARY,
    WHOLE,
    ReplicaStages,
)

ROOT = Path(__file__).resolve().parents[2]
TRAIN, EVALUATE = (str(ROOT / "pipeline" / f"{name}.py") for name in ("train", "evaluate"))


def test_all_trainings_differ_only_in_system_and_seed(tmp_path):
    stages = ReplicaStages(tmp_path, quick=False).stages()
    trainings = {stage.name: stage.command() for stage in stages}
    trainings = {name: command for name, command in trainings.items() if TRAIN in command}
    assert len(trainings) == len(SYSTEMS) * (1 + len(SEEDS))
    configs = {
        name: parse(command[command.index(TRAIN) + 1 :])[0] for name, command in trainings.items()
    }
    for name, config in configs.items():
        run = name.removesuffix("-finetune").removesuffix("-pretrain")
        system = next(system for system in SYSTEMS if run.startswith(system))
        seed = run.removeprefix(system).removeprefix("-")
        assert config.train.seed == int(seed or 0)
        assert config.baseline == (None if system == "locost" else system)
        first = configs[name.replace(system, "locost")]
        assert vars(config.data) == vars(first.data)
        others = {k: v for k, v in vars(config.train).items() if k != "embedding_lr_scale"}
        assert others.items() <= vars(first.train).items()
    assert configs["locost-1-finetune"].model["d_model"] == LOCOST["d_model"]
    assert configs["led-pretrain"].baseline_settings == SYSTEMS["led"]
    assert {PRETRAIN.name, FINETUNE.name} == {
        Path(command[command.index("--config") + 1]).name for command in trainings.values()
    }


def test_every_system_is_measured_by_position_too(tmp_path):
    stages = ReplicaStages(tmp_path, quick=False).stages()
    evaluations = [stage.command() for stage in stages if stage.name.endswith("-evaluate")]
    assert len(evaluations) == len(SYSTEMS) * len(SEEDS)
    for command in evaluations:
        options, _ = evaluate.parse(command[command.index(EVALUATE) + 1 :])
        assert options.source_use_by_position and options.source_length == WHOLE


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
    count["led"] -= WHOLE * LOCOST["d_model"]
    assert all(3.55e6 <= n <= 3.95e6 for n in count.values()), count


@pytest.mark.soak
def test_the_quick_replica_writes_its_report(tmp_path):
    command = [sys.executable, str(ROOT / "pipeline" / "replica.py"), "--quick"]
    finished = subprocess.run(
        [*command, "--output", str(tmp_path / "replica")], capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    report = (tmp_path / "replica" / "report.md").read_text()
    for name in ("LOCOST", "LongT5", "LED"):
        assert f"| {name}" in report
    assert "| part of the source | LOCOST | LongT5 | LED |" in report
    stages = json.loads((tmp_path / "replica" / "stages.json").read_text())
    assert len(stages) == 7 + 3 * len(SYSTEMS) + 1  # shards, one seed, measurements
