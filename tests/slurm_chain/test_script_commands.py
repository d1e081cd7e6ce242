"""The programs that the job scripts start, seen by an interpreter that prints its arguments."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(tmp_path):
    """Runs a job script's check of its arguments: (exit status, the words of the last command)."""
    for name in ("python", "legacy"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text("{}")
    models = {f"{name}_MODEL": f"{tmp_path}/models" for name in
              ("LED", "LSG", "LONGT5_TGLOBAL", "BART_LARGE")}  # fmt: skip

    def run(name: str, *words: str, **settings: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", f"{ROOT}/slurm/{name}.sh", *words, "--check_arguments"],
            capture_output=True, text=True,
            env={
                "PATH": os.environ["PATH"], "LOCOST_ROOT": str(ROOT), "MPIRUN": "true",
                "PYTHON": f"{tmp_path}/python", "LSG_PYTHON": f"{tmp_path}/legacy",
                "RUNS": "runs", "SHARDS": "shards", **models, **settings,
            },
        )  # fmt: skip
        said = (done.stderr or done.stdout).strip().splitlines()[-1]
        return done.returncode, said.replace(f"{tmp_path}/", "").replace(f"{ROOT}/", "")

    return run


def test_a_baseline_is_trained_from_its_folder_on_shards_made_with_its_tokenizer(script):
    status, command = script("finetune", "arxiv:led", LED_FINETUNE_ARGUMENTS="--of led")
    assert status == 0 and "--output runs/finetune-arxiv-led --config" in command
    assert "finetune_arxiv.yaml --model.init_from models --model.baseline led" in command
    assert "--data.train shards/arxiv-train-led --data.validation shards/arxiv-validation-led" in (
        command
    )
    both = {"ARXIV_FINETUNE_ARGUMENTS": "--of set", "ARXIV_LED_FINETUNE_ARGUMENTS": "--of both"}
    command = script("finetune", "arxiv:led", LED_FINETUNE_ARGUMENTS="--of led", **both)[1]
    assert " --of set --of both " in command and "--of led" not in command
    large = script("finetune", "booksum_book:bart-large")[1]
    assert "--model.baseline bart --data.train shards/booksum_book-train-bart-large" in large
    assert "--data.source_length 1024" in large
    longt5 = script("finetune", "arxiv:longt5-tglobal")[1]
    assert "--data.train shards/arxiv-train --data" in longt5
    assert script("finetune", "arxiv:lsg")[1].startswith("legacy pipeline/train.py")
    assert "--tokenizer models" in script("preprocess", "arxiv:lsg")[1]


def test_a_sweep_has_its_own_folders_and_lengths(script):
    command = script("finetune", "booksum_book@4096")[1]
    assert "--output runs/finetune-booksum_book@4096" in command
    assert "--model.init_from runs/pretrain/last" in command
    assert "--data.source_length 4096" in command
    command = script("evaluate", "booksum_book@4096")[1]
    assert "--checkpoint runs/finetune-booksum_book@4096/best" in command
    assert "--output runs/evaluation-booksum_book@4096" in command
    assert "--source_length 0" in command and "sequence" not in command
    command = script("evaluate", "arxiv:longt5-tglobal+8192", RUNS="a+b")[1]
    assert "--checkpoint a+b/finetune-arxiv-longt5-tglobal/best" in command
    assert "--output a+b/evaluation-arxiv-longt5-tglobal+8192 --data shards/arxiv-test" in command
    assert command.endswith("/arxiv-test --source_length 8192 --check_arguments")
    shared = {
        "BOOKSUM_BOOK_EVALUATE_ARGUMENTS": "--source_length 0",
        "BOOKSUM_BOOK_LOCOST_EVALUATE_ARGUMENTS": "--sequence_parallel_size 4",
    }
    books = script("evaluate", "booksum_book", **shared)[1]
    assert books.endswith(" --source_length 0 --sequence_parallel_size 4 --check_arguments")
    books = script("evaluate", "booksum_book:longt5-tglobal", **shared)[1]
    assert books.endswith(" --source_length 0 --source_length 32768 --check_arguments")


def test_what_is_measured_names_the_evaluation_or_the_pretrained_model(script):
    command = script("measure", "bert_score", "pubmed:lsg", BERT_SCORE_ARGUMENTS="--layer 3")[1]
    assert command == (
        "python pipeline/metrics.py bert_score --evaluation runs/evaluation-pubmed-lsg --layer 3 "
        "--check_arguments"
    )
    command = script("measure", "judge", "pubmed", "--samples", "9")[1]
    assert command == (
        "python pipeline/judge.py --evaluation runs/evaluation-pubmed --samples 9 --check_arguments"
    )
    assert script("measure", "systems", SYSTEMS_ARGUMENTS="--mode training")[1] == (
        "python pipeline/benchmark.py systems --output runs/systems --mode training "
        "--check_arguments"
    )
    kernels = script("measure", "kernels")[1]
    assert kernels.startswith("python pipeline/plot_kernels.py runs/pretrain/last --output runs/")


@pytest.mark.parametrize(
    "words, message",
    [
        ("finetune arxiv+8192", "a fine-tuning takes SET, SET:SYSTEM or SET@TOKENS"),
        ("preprocess arxiv@1024", "preprocessing takes pretrain, SET or SET:SYSTEM"),
        ("evaluate Arxiv", "Arxiv is not SET, SET:SYSTEM, SET@TOKENS or SET+TOKENS"),
        ("evaluate arxiv:t5", "MODEL of t5 is '', expected the folder of its weights"),
        ("measure bert_score", "give the set, or SET:SYSTEM: measure.sh bert_score arxiv"),
        ("measure rouge arxiv", "measure.sh takes bert_score, blanc, judge, systems or kernels"),
        ("measure", "measure.sh takes bert_score, blanc, judge, systems or kernels"),
    ],
)
def test_other_words_are_refused(script, words, message):
    status, error = script(*words.split())
    assert status == 2 and error.startswith("error: ") and message in error
