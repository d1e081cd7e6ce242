"""Summarisation shards: references survive untruncated, bad pairs are counted."""

import gzip
import json

import pytest
from made_up_text import tree, write_lines

from pipeline.shards import Dataset
from pipeline.tokenizer import Tokenizer
from preprocessing import finetune

DOCUMENT = "The old mill stands by the river. Herons fish there until evening."
SUMMARY = "The mill is old. Herons fish."


def arguments(source, tokenizer, output, *more):
    options = ["--dataset", "jsonl", "--input", source]
    return [*options, "--tokenizer", tokenizer, "--output", output, *more]


def test_references_are_whole_and_targets_cut(command, tokenizer_path, tmp_path):
    pairs = [
        {"id": "a", "document": DOCUMENT, "summary": SUMMARY},
        {"id": 7, "document": DOCUMENT, "summary": ["First one.\nTwo lines.", "", "Second one."]},
    ]
    source = write_lines(tmp_path / "pairs.jsonl.gz", [json.dumps(pair) for pair in pairs])
    lengths = ["--source_length", 9, "--target_length", 5]
    command(finetune.main, *arguments(source, tokenizer_path, tmp_path / "set", *lengths))
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
        {"id": None},
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


def test_again_is_the_same_and_corrupt_is_named(command, tokenizer_path, tmp_path):
    line = json.dumps({"id": "a", "document": DOCUMENT, "summary": SUMMARY})
    source = write_lines(tmp_path / "x.jsonl.gz", [line] * 50)
    for name in ("one", "two"):
        command(finetune.main, *arguments(source, tokenizer_path, tmp_path / name / "set"))
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    source.write_bytes(gzip.compress(line.encode() * 500)[:-9])
    with pytest.raises(ValueError, match=r"x\.jsonl\.gz is corrupt or cut short"):
        command(finetune.main, *arguments(source, tokenizer_path, tmp_path / "three"))
