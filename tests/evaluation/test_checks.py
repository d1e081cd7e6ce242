"""Checks before a job: of all inputs, and of what is there before an earlier job has ended."""

import sys

import pytest
from tiny_bert import make_bert

from pipeline import benchmark, judge, metrics, plot_kernels, train
from preprocessing import retokenise

EVALUATION = ("--evaluation", "to/come")
PRICES = ("--price_input", "0", "--price_output", "0")


def refused(command, capsys, *words: object) -> str:
    """The error of a command that ends with status 2."""
    with pytest.raises(SystemExit) as stopped:
        command(list(map(str, words)))
    error = capsys.readouterr().err.splitlines()[-1]  # the libraries print too
    assert stopped.value.code == 2 and error.startswith("error: ")
    return error


def test_a_metrics_model_is_checked_before_the_evaluation_is_there(finished, tmp_path, capsys):
    pytest.importorskip("bert_score", reason="bert-score: requirements-extras.txt")
    bert = make_bert(tmp_path / "bert", seed=0, layers=2, model_max_length=512)
    scorer = ("bert_score", "--model", str(bert), "--layer")
    assert metrics.main([*scorer, "2", *EVALUATION, "--check_arguments"]) == 0
    assert "to/come" in refused(metrics.main, capsys, *scorer, 2, *EVALUATION, "--dry_run")
    evaluation = ("--evaluation", str(finished))
    before = sorted(finished.iterdir())
    assert metrics.main([*scorer, "2", *evaluation, "--dry_run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ready: 26 summaries"
    assert sorted(finished.iterdir()) == before
    for check in ("--dry_run", "--check_arguments"):
        assert "lacks" in refused(metrics.main, capsys, *scorer, 3, *evaluation, check)
    blanc = ("blanc", "--model", bert, "--python", sys.executable, *EVALUATION)
    assert metrics.main([*map(str, blanc), "--check_arguments"]) == 0
    assert "make legacy" in refused(
        metrics.main, capsys, *blanc, "--python", "none", "--check_arguments"
    )
    (bert / "vocab.txt").unlink()
    assert "no vocab.txt" in refused(metrics.main, capsys, *blanc, "--check_arguments")


def test_a_judges_server_and_prompt_are_checked(monkeypatch, tmp_path, capsys):
    words = (*EVALUATION, *PRICES, "--check_arguments")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_MODEL", "judge")
    assert "OPENAI_BASE_URL not set" in refused(judge.main, capsys, *words)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert judge.main(list(words)) == 0
    (tmp_path / "prompt.txt").write_text("{document}")
    more = ("--prompt", tmp_path / "prompt.txt")
    assert "{summary} 0 times" in refused(judge.main, capsys, *words, *more)


def test_kernels_and_measurements_are_checked(checkpoint, tmp_path, capsys):
    output = ("--output", str(tmp_path / "kernels"))
    assert plot_kernels.main([str(checkpoint), *output, "--dry_run"]) == 0
    assert plot_kernels.main(["to/come", *output, "--check_arguments"]) == 0
    assert "to/come" in refused(plot_kernels.main, capsys, "to/come", *output, "--dry_run")
    assert benchmark.main(["systems", "--check_arguments", *output]) == 0
    assert not (tmp_path / "kernels").exists()


def test_a_retokenisation_is_checked(dataset_folder, tokenizer_path, tmp_path, capsys, monkeypatch):
    def run(*words: object) -> None:
        monkeypatch.setattr(sys, "argv", ["retokenise", *map(str, words)])
        retokenise.main()

    output = ("--output", tmp_path / "again", "--tokenizer", tokenizer_path)
    run("--data", "to/come", *output, "--check_arguments")
    run("--data", dataset_folder, *output, "--dry_run")
    assert "ready: again, inputs: " in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"to/come"):
        run("--data", "to/come", *output, "--dry_run")
    with pytest.raises(ValueError, match="no tokenizer at none"):
        run("--data", "to/come", *output, "--tokenizer", "none", "--check_arguments")
    assert not (tmp_path / "again").exists()


def test_the_folder_of_a_baselines_weights_is_checked(checkpoint, tmp_path, capsys):
    words = ("--config", "finetune_pubmed.yaml", "--data.train", "to/come", "--output",
             tmp_path / "run", "--data.validation", "to/come",
             "--model.baseline", "led", "--check_arguments")  # fmt: skip
    assert train.main(list(map(str, words))) == 0
    error = refused(train.main, capsys, *words, "--model.init_from", checkpoint)
    assert "holds no baseline, model.baseline is led" in error
    (tmp_path / "config.json").write_text('{"model_type": "led"}')
    error = refused(train.main, capsys, *words, "--model.init_from", tmp_path)
    assert "lacks model.safetensors and tokenizer.model" in error
