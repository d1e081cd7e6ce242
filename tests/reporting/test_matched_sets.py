"""A column of the page takes evaluations of its own set and split alone."""

import json
from pathlib import Path

import pytest

from pipeline.evaluation.results import trained_length
from pipeline.manifest import write_manifest
from pipeline.report import main, parse, read_paper_inputs
from pipeline.reporting.paper.inputs import read_set_evaluation
from pipeline.shards import Dataset

INTERVAL = {"value": 1.0, "low": 0.0, "high": 2.0}
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum", "mean_rouge", "mean_rouge_L")


def write(folder: Path, dataset: dict, weights: str = "", source: object = 4096) -> Path:
    """An evaluation folder with these settings of its data."""
    folder.mkdir()
    model = dict.fromkeys(ROUGE, INTERVAL)
    results = {
        "settings": {
            **({"weights_sha256": weights} if weights else {}),
            "dataset": {"name": "shards", "split": "test", **dataset},
            "decoding": {"method": "greedy", "max_new_tokens": 8, "source_length": source},
        },
        "examples": 3,
        "systems": {"model": model},
        "best_over_references": {"model": {**model, "geometric_mean": INTERVAL}},
        "model_minus": {},
        "predictions_without_words": {"model": 0},
    }
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.mark.parametrize(
    ("option", "dataset", "said"),
    [
        ("--evaluation pubmed", {"set": "arxiv"}, "is an evaluation of arxiv, not of pubmed; "),
        ("--evaluation pubmed", {"set": "jsonl"}, "is an evaluation of jsonl, not of pubmed; "),
        ("--evaluation pubmed:led", {"set": ""}, "data that names no set, not of pubmed; "),
        ("--evaluation pubmed", {"set": "pubmed", "split": "val"}, "pubmed's split validation, "),
        ("--evaluation govreport", {"set": "govreport", "split": "train"}, "split train, not of"),
        ("--extrapolation 4096", {"set": "pubmed"}, "is an evaluation of pubmed, not of arxiv; "),
        ("--context 1024", {"set": "booksum_chapter"}, "booksum_chapter, not of booksum_book; "),
    ],
)
def test_another_set_or_split_is_refused_in_one_line(tmp_path, capsys, option, dataset, said):
    folder = write(tmp_path / "evaluation", dataset)
    with pytest.raises(SystemExit, match="2"):
        main(["paper", *f"{option}={folder}".split(), f"--output={tmp_path / 'out'}"])
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(folder) in error and said in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("pubmed", {"set": "pubmed"}),
        ("pubmed", {}),  # of an earlier version, which did not record the set
        ("govreport", {"set": "govreport", "split": "validation"}),  # SCROLLS hides the test split
        ("pubmed_validation", {"set": "pubmed", "split": "validation"}),
        ("mine", {"set": "jsonl", "split": "train"}),
    ],
)
def test_its_own_set_and_a_set_of_ones_own_are_read(tmp_path, name, dataset):
    assert read_set_evaluation(write(tmp_path / "evaluation", dataset), name).metrics == []


def test_a_column_of_the_sweep_takes_models_trained_at_its_length(tmp_path):
    folder = write(tmp_path / "evaluation", {"set": "booksum_book"})
    step = tmp_path / "run" / "checkpoints" / "step-00000001"
    step.mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("data: {source_length: 2048}")
    (tmp_path / "run" / "best").symlink_to("checkpoints/step-00000001")
    recorded = trained_length(tmp_path / "run" / "best")
    assert recorded == {"trained_source_length": 2048}
    assert trained_length(folder) == {}
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps(results | recorded))
    with pytest.raises(ValueError, match="of a model trained on 2048 tokens, not on 1024"):
        read_paper_inputs(parse(["paper", "--context", f"1024={folder}", "--output=x"]))
    read_paper_inputs(parse(["paper", "--context", f"2048={folder}", "--output=x"]))


def test_shards_of_another_set_are_refused(tmp_path, dataset_folder, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes((dataset_folder / "tokenizer.model").read_bytes())
    manifest = {**Dataset(dataset_folder).manifest, "shards": []}
    write_manifest(folder, {**manifest, "settings": {"dataset": "booksum-chapter"}})
    with pytest.raises(SystemExit, match="2"):
        main(["paper", "--data", f"arxiv={folder}", f"--output={tmp_path / 'out'}"])
    assert "holds shards of booksum_chapter, not of arxiv" in capsys.readouterr().err


def test_extrapolation_is_of_one_model_and_a_sweep_of_several(tmp_path):
    """A gain of another model, or one model under two lengths, is a column of something else."""
    arxiv = write(tmp_path / "a", {"set": "arxiv"}, "first")
    longer = write(tmp_path / "b", {"set": "arxiv"}, "second", source=8192)
    books = [write(tmp_path / name, {"set": "booksum_book"}, "first") for name in "cd"]

    def read(*words: str) -> None:
        read_paper_inputs(parse(["paper", *words, "--output=x"]))

    with pytest.raises(ValueError, match="by locost at 4,096, 8,192 tokens are of several models"):
        read("--evaluation", f"arxiv={arxiv}", "--extrapolation", f"8192={longer}")
    read("--extrapolation", f"8192={longer}")
    with pytest.raises(ValueError, match="trained at 1,024, 2,048 tokens two are of one model"):
        read("--context", f"1024={books[0]}", f"2048={books[1]}")
    read("--context", f"1024={books[0]}", f"2048:led={books[1]}")
