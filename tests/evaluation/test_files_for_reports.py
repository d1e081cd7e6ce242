"""The report reads the files that evaluate.py and metrics.py really write, none made up."""

import json
import shutil
from pathlib import Path

import pytest
from finished_evaluation import finish
from tiny_bert import make_bert

from pipeline.manifest import write_manifest
from pipeline.metrics import main as metrics
from pipeline.report import main as report
from pipeline.shards import Dataset


def row_of_locost(text: str, heading: str) -> dict[str, str]:
    """Our LOCOST's cells, by column, in the first table below a heading."""
    lines = text.split(heading)[1].splitlines()
    header = next(line for line in lines if line.startswith("| system |"))
    row = next(line for line in lines if line.startswith("| LOCOST | ours |"))
    return dict(zip(header[2:-2].split(" | "), row[2:-2].split(" | "), strict=True))


def of_set(dataset_folder: Path, folder: Path, name: str) -> Path:
    """The dataset as the test split of a set, as preprocessing names it."""
    shutil.copytree(dataset_folder, folder)
    manifest = Dataset(folder).manifest
    write_manifest(folder, {**manifest, "split": "test", "settings": {"dataset": name}})
    return folder


def test_the_report_shows_what_the_commands_wrote(checkpoint, dataset_folder, tmp_path):
    pytest.importorskip("bert_score", reason="bert-score: requirements-extras.txt")
    folder = finish(
        checkpoint, of_set(dataset_folder, tmp_path / "data", "arxiv"), tmp_path / "evaluation",
        limit=3,
    )  # fmt: skip
    book = finish(
        checkpoint, of_set(dataset_folder, tmp_path / "books", "booksum-book"), tmp_path / "book",
        limit=3,
    )  # fmt: skip
    bert = make_bert(tmp_path / "bert-tiny", seed=0)
    metrics(["bert_score", "--evaluation", str(folder), "--model", str(bert), "--layer", "2"])
    (written,) = folder.glob("bert_score-model-*.json")
    metric = json.loads(written.read_text())
    chosen = ["--evaluation", f"arxiv={folder}", f"booksum_book={book}", f"own={folder}"]
    report(["paper", *chosen, f"--output={tmp_path / 'report'}"])
    text = (tmp_path / "report" / "report.md").read_text()
    results = json.loads((folder / "results.json").read_text())["systems"]["model"]
    ours = row_of_locost(text, "### 2. ")
    assert ours["ROUGE-Lsum"] == f"{results['rougeLsum']['value']:.1f}"
    assert ours[metric["column"]] == f"{metric['scores']['f1']['value']:.2f}"
    book = row_of_locost(text, "### 5. ")
    assert book["Mean ROUGE"] == f"{results['mean_rouge_L']['value']:.2f}"
    assert "greedy, source as in the dataset, at most 10 new tokens; rouge-score 0.1.2" in text
