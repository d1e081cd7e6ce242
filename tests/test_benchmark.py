"""The choice of precision; the times themselves are nobody's to assert."""

import json

import pytest

from pipeline import benchmark
from pipeline.config import ROOT

RECIPE = str(ROOT / "pipeline" / "recipes" / "demo_pretrain.yaml")


@pytest.mark.parametrize(
    ("bf16", "fp32", "chosen"), [(1.0, 1.5, "bf16"), (1.05, 1.0, "bf16"), (2.5, 1.0, "fp32")]
)
def test_bf16_unless_fp32_is_clearly_faster(bf16, fp32, chosen):
    assert benchmark.faster({"bf16": bf16, "fp32": fp32}) == chosen


def test_both_precisions_are_timed_and_written(tmp_path, capsys):
    output = tmp_path / "precision.json"
    arguments = ["precision", "--config", RECIPE, "--samples", "1", "--output", str(output)]
    assert benchmark.main(arguments) == 0
    written = json.loads(output.read_text())
    assert written["faster"] == benchmark.faster(written["seconds"])
    assert f"{written['faster']} is the faster" in capsys.readouterr().out


def test_a_missing_recipe_is_one_line(capsys):
    assert benchmark.main(["precision", "--config", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err.startswith("error: nowhere.yaml")
