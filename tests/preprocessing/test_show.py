"""What one sees of a dataset."""

import json

import pytest
from made_up_text import write_lines

from pipeline.shards import Dataset
from preprocessing import finetune, pretrain, show


@pytest.fixture
def dataset(command, corpus, tokenizer_path, tmp_path):
    options = ["--input", corpus / "c4-*", "--tokenizer", tokenizer_path]
    command(pretrain.main, *options, "--output", tmp_path / "c4")
    return Dataset(tmp_path / "c4")


def test_manifest_as_a_table(command, capsys, dataset):
    capsys.readouterr()
    command(show.main, dataset.path)
    lines = capsys.readouterr().out.splitlines()
    rows = dict(line.split("  ", 1) for line in lines)
    rows = {name: value.strip() for name, value in rows.items()}
    counts = dataset.manifest["counts"]
    assert rows["documents"] == str(counts["documents"])
    assert rows["kept"] == str(len(dataset))
    assert rows["settings: ratio"] == "0.2"
    assert dataset.manifest["tokenizer"]["sha256"] in rows["tokenizer"]
    assert rows["source ids"].startswith(f"mean {dataset.manifest['lengths']['source']['mean']}")


def test_sample_as_text(command, capsys, dataset):
    capsys.readouterr()
    command(show.main, dataset.path, "--sample", 5)
    text = capsys.readouterr().out
    assert dataset[5].metadata["url"] in text
    target = text.split("target")[-1].splitlines()[1:]
    assert len([line for line in target if line]) == len(dataset[5].metadata["gap_sentences"])
    with pytest.raises(ValueError, match=f"has samples 0 to {len(dataset) - 1}"):
        command(show.main, dataset.path, "--sample", len(dataset))


def test_references_are_shown_whole(command, capsys, tokenizer_path, tmp_path):
    pair = {
        "id": "a",
        "document": "A mill by the river.",
        "summary": ["It is old.", "An old mill."],
    }
    source = write_lines(tmp_path / "x.jsonl", [json.dumps(pair)])
    options = ["--dataset", "jsonl", "--input", source, "--tokenizer", tokenizer_path]
    command(finetune.main, *options, "--target_length", 2, "--output", tmp_path / "set")
    command(show.main, tmp_path / "set", "--sample", 0)
    text = capsys.readouterr().out
    assert "reference 0, untruncated:\nIt is old." in text
    assert "reference 1, untruncated:\nAn old mill." in text
