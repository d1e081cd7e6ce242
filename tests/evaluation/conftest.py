"""An evaluation of the tiny model, and the judge's command on it."""

import shutil
from pathlib import Path

import pytest
from finished_evaluation import ALONE, edit, finish
from judge_command import KEY, MODEL, JudgeCommand

from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.model.generation import DecodingStrategy


def evaluation_options(checkpoint: Path, data: Path, output: Path) -> EvaluationOptions:
    """All default systems with a short greedy decoding, in seven batches of the 26 samples."""
    return EvaluationOptions(
        checkpoint=checkpoint,
        data=data,
        output=output,
        strategy=DecodingStrategy(max_new_tokens=10),
        batch_size=4,
        precision="fp32",
        lead_sentences=1,
    )


@pytest.fixture
def options(checkpoint, dataset_folder, tmp_path) -> EvaluationOptions:
    """Options of an evaluation that has not started."""
    return evaluation_options(checkpoint, dataset_folder, tmp_path / "out")


@pytest.fixture(scope="session")
def finished(checkpoint, dataset_folder, tmp_path_factory) -> Path:
    """The output of an uninterrupted evaluation with these options; to be copied, not changed."""
    output = tmp_path_factory.mktemp("evaluation") / "out"
    assert evaluate(evaluation_options(checkpoint, dataset_folder, output), ALONE)[1]
    return output


@pytest.fixture(scope="session")
def numbered_summaries(checkpoint, dataset_folder, tmp_path_factory) -> Path:
    """A finished evaluation whose model wrote "Summary N, ..."; to be copied, not changed."""
    folder = finish(checkpoint, dataset_folder, tmp_path_factory.mktemp("numbered") / "out")
    edit(folder, {k: {"prediction": f"Summary {k}, {{document}} and so on."} for k in range(26)})
    return folder


@pytest.fixture
def judge(numbered_summaries, tmp_path, monkeypatch, capsys) -> JudgeCommand:
    """judge.py on a copy of it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_MODEL", MODEL)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = shutil.copytree(numbered_summaries, tmp_path / "out")
    return JudgeCommand(folder, monkeypatch, capsys)
