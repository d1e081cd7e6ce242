"""Summarisation shards: references stay untruncated, bad pairs are counted."""

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest
from made_up_text import tree, write_lines

from pipeline.shards import Dataset
from pipeline.tokenizer import Tokenizer
from preprocessing import finetune
from preprocessing.readers.summarisation_sets import SETS

DOCUMENT = "The old mill stands by the river. Herons fish there until evening."
SUMMARY = "The mill is old. Herons fish."


def arguments(source, tokenizer, output, *more):
    options = ["--dataset", "jsonl", "--input", source]
    return [*options, "--tokenizer", tokenizer, "--output", output, *more]


def test_references_are_whole_and_targets_cut(command, tokenizer_path, tmp_path, capsys):
    pairs = [
        {"id": "a", "document": DOCUMENT, "summary": SUMMARY},
        {"id": 7, "document": DOCUMENT, "summary": ["First one.\nTwo lines.", "", "Second one."]},
    ]
    source = write_lines(tmp_path / "pairs.jsonl.gz", [json.dumps(pair) for pair in pairs])
    lengths = ["--source_length", 9, "--target_length", 5]
    command(finetune.main, *arguments(source, tokenizer_path, tmp_path / "set", *lengths))
    assert "3 samples from 4 pairs in 1 shards" in capsys.readouterr().out
    dataset, tokenizer = Dataset(tmp_path / "set"), Tokenizer(tokenizer_path)
    assert dataset.manifest["kind"] == "summarisation"
    assert dataset.manifest["split"] == "train"
    first, second, third = dataset
    assert first.metadata["id"] == "a"
    assert first.metadata["references"] == ["The mill is old.\nHerons fish."]
    assert first.metadata["source_text"] == DOCUMENT
    # A pair is a sample; pairs of one source share its id.
    assert [second.metadata["id"], third.metadata["id"]] == ["7", "7"]
    assert second.metadata["references"] == ["First one.\nTwo lines."]
    assert third.metadata["references"] == ["Second one."]
    assert first.source.tolist() == [*tokenizer.encode(DOCUMENT)[:8], 1]
    assert second.source.tolist() == third.source.tolist() == first.source.tolist()
    assert first.target.tolist() == [*tokenizer.encode(SUMMARY)[:4], 1]
    assert second.target.tolist() == [*tokenizer.encode("First one. Two lines.")[:4], 1]
    counts = dataset.manifest["counts"]
    assert counts["truncated_targets"] == 3
    assert (counts["documents"], counts["excluded"]) == (4, {"no summary": 1})


def test_bad_pairs_are_counted(command, tokenizer_path, tmp_path):
    good = {"id": "a", "document": DOCUMENT, "summary": SUMMARY}
    changes = [
        {},
        {"document": None},
        {"document": " "},
        {"summary": None},
        {"summary": ""},
        {"summary": []},
        {"summary": [None, " "]},
        {"summary": 3},
        {"id": {}},
        {"summary": "\ud800"},
    ]
    source = write_lines(tmp_path / "x.jsonl", ["nonsense"])
    with source.open("a") as file:
        for change in changes:
            file.write(json.dumps({**good, **change}) + "\n")
    command(finetune.main, *arguments(source, tokenizer_path, tmp_path / "set"))
    counts = Dataset(tmp_path / "set").manifest["counts"]
    assert counts["documents"] == len(changes) + 1
    assert counts["kept"] == 1
    assert counts["excluded"] == {
        "bad encoding": 1,
        "empty": 1,
        "no id": 1,
        "no summary": 5,
        "no text": 1,
        "not JSON": 1,
    }


def test_shards_are_deterministic_and_a_corrupt_input_is_named(command, tokenizer_path, tmp_path):
    line = json.dumps({"id": "a", "document": DOCUMENT, "summary": SUMMARY})
    source = write_lines(tmp_path / "x.jsonl.gz", [line] * 50)
    for name in ("one", "two"):
        command(finetune.main, *arguments(source, tokenizer_path, tmp_path / name / "set"))
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    source.write_bytes(gzip.compress(line.encode() * 500)[:-9])
    with pytest.raises(ValueError, match=r"x\.jsonl\.gz is corrupt or truncated"):
        command(finetune.main, *arguments(source, tokenizer_path, tmp_path / "three"))


def test_a_hidden_test_split_is_kept_without_references(command, tokenizer_path, tmp_path, capsys):
    records = [
        {"id": "a", "pid": "a_0", "input": DOCUMENT, "output": None},
        {"id": "b", "pid": "b_0", "input": DOCUMENT, "output": ""},
        {"id": "c", "pid": "c_0", "input": DOCUMENT},
        {"id": "d", "pid": "d_0", "input": DOCUMENT, "output": SUMMARY},
    ]
    source = write_lines(tmp_path / "x.jsonl", [json.dumps(record) for record in records])
    options = ["--dataset", "govreport", "--input", source, "--tokenizer", tokenizer_path]
    command(finetune.main, *options, "--split", "test", "--output", tmp_path / "test")
    said = capsys.readouterr().out
    assert "2 have no reference and cannot be scored" in said
    assert "the paper's table lists 973 samples, this folder holds 3" in said
    dataset = Dataset(tmp_path / "test")
    assert [sample.metadata["id"] for sample in dataset] == ["a", "c", "d"]
    assert [sample.metadata["references"] for sample in dataset][:2] == [[], []]
    assert [sample.target.tolist() for sample in dataset][:2] == [[1], [1]]
    counts = dataset.manifest["counts"]
    assert (counts["documents"], counts["kept"], counts["without_references"]) == (4, 3, 2)
    assert counts["excluded"] == {"no summary": 1}
    command(finetune.main, *options, "--split", "train", "--output", tmp_path / "train")
    counts = Dataset(tmp_path / "train").manifest["counts"]
    assert (counts["kept"], counts["excluded"]) == (1, {"no summary": 3})


def test_a_split_of_the_papers_size_is_reported(command, tokenizer_path, tmp_path, capsys):
    """BookSum-Book's test split: 46 pairs, sources never cut, targets at 1,024 ids."""
    summaries = [{"text": f"Summary {k}."} for k in range(23)]
    text = DOCUMENT * 300
    books = [{"bid": k, "title": "T", "text": text, "summary": summaries} for k in range(2)]
    source = write_lines(tmp_path / "test.jsonl", [json.dumps(book) for book in books])
    options = ["--dataset", "booksum-book", "--split", "test", "--tokenizer", tokenizer_path]
    command(finetune.main, *options, "--input", source, "--output", tmp_path / "set")
    assert "46 samples, as in the paper's table" in capsys.readouterr().out
    dataset = Dataset(tmp_path / "set")
    settings, counts = dataset.manifest["settings"], dataset.manifest["counts"]
    assert (settings["source_length"], settings["target_length"]) == (0, 1024)
    assert (counts["documents"], counts["kept"], counts["truncated_sources"]) == (46, 46, 0)
    whole = [*Tokenizer(tokenizer_path).encode(text), 1]
    assert len(whole) > 4096
    assert dataset[45].source.tolist() == whole
    assert [sample.metadata["id"] for sample in dataset] == ["0"] * 23 + ["1"] * 23
    assert dataset[24].metadata["references"] == ["Summary 1."]


def test_lengths_default_to_the_sets_and_can_be_set(command, tokenizer_path, tmp_path):
    record = {"article": DOCUMENT * 300, "abstract": SUMMARY}
    source = write_lines(tmp_path / "x.jsonl", [json.dumps(record)])
    options = ["--dataset", "arxiv", "--input", source, "--tokenizer", tokenizer_path]
    command(finetune.main, *options, "--output", tmp_path / "default")
    command(finetune.main, *options, "--output", tmp_path / "whole", "--source_length", 0)
    default, whole = (Dataset(tmp_path / name)[0] for name in ("default", "whole"))
    assert len(default.source) == 4096
    assert len(whole.source) > 4096
    assert default.source[:-1].tolist() == whole.source[:4095].tolist()


def test_sentences_split_by_the_set_stay_split(command, tokenizer_path, tmp_path):
    sentences = ["the mill , cf . fig . 1 , is old . and more .", "herons\nfish ."]
    record = {
        "article_id": "1",
        "article_text": ["a ."],
        "abstract_text": [f"<S> {sentence} </S>" for sentence in sentences],
    }
    source = write_lines(tmp_path / "x.txt", [json.dumps(record)])
    options = ["--dataset", "pubmed", "--input", source, "--tokenizer", tokenizer_path]
    command(finetune.main, *options, "--output", tmp_path / "set")
    (sample,) = Dataset(tmp_path / "set")
    assert sample.metadata["references"] == [f"{sentences[0]}\nherons fish ."]
    first = len(Tokenizer(tokenizer_path).encode(sentences[0]))
    assert sample.metadata["target_sentence_ends"] == [first, len(sample.target) - 1]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--format", "gao"], "--format is gao, expected one of the formats of jsonl: jsonl"),
        (["--root", "/nowhere"], "--root /nowhere is not a folder"),
        (["--source_length", 1], "--source_length is 1"),
    ],
)
def test_bad_options_are_named(command, tokenizer_path, tmp_path, more, named):
    line = json.dumps({"id": "a", "document": DOCUMENT, "summary": SUMMARY})
    source = write_lines(tmp_path / "x.jsonl", [line])
    with pytest.raises(ValueError, match=named):
        command(finetune.main, *arguments(source, tokenizer_path, tmp_path / "set", *more))
    assert not (tmp_path / "set").exists()


def test_the_data_page_lists_every_set_and_format():
    """Its commands need downloaded files; here they are only parsed."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python -m preprocessing\.finetune (.*)$", page, re.M)
    parsed = [finetune._parser().parse_args(shlex.split(command)) for command in commands]
    assert {options.dataset for options in parsed} == SETS.keys() - {"jsonl"}
    for name, known in SETS.items():
        row = next(line for line in page.splitlines() if re.match(rf"\|[^|]*`{name}`", line))
        lengths = f"| {known.source_length:,} / {known.target_length:,} |"
        assert lengths in row
        assert name == "jsonl" or all(f"`{form}`" in row for form in known.formats)
