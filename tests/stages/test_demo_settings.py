"""The demo's seed and settings."""

import pytest

from pipeline.demo import main
from pipeline.stages.demo import FINETUNE, PRETRAIN, DemoStages, settings


def test_the_seed_is_that_of_all_trainings_and_makes_another_run(tmp_path):
    (tmp_path / "precision.json").write_text('{"faster": "fp32"}')
    demo = DemoStages(tmp_path, quick=False, seed=7)
    for command in (demo.pretrain(), demo.finetune("finetune"), demo.finetune("scratch")):
        assert command[command.index("--train.seed") + 1] == "7"
    assert settings(False, 0) != settings(False, 7)


def test_the_settings_hold_every_file_that_decides_the_results():
    """A folder made by other code or recipes must not be resumed."""
    files = settings(False, 0)["files"]
    assert isinstance(files, dict)
    assert set(files) == {
        "demo.py", "commands.py", "stage_runner.py", PRETRAIN.name, FINETUNE.name,
    }  # fmt: skip
    assert "class DemoStages" in files["demo.py"]
    assert "def training" in files["commands.py"]
    assert "def run_stages" in files["stage_runner.py"]


def test_a_negative_seed_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["--seed", "-1", "--output", str(tmp_path / "demo")])
    assert end.value.code == 2
    assert "argument --seed: '-1': expected an integer of at least 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
