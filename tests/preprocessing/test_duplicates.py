"""Of equal texts the first stays, wherever the others are."""

import json
import random

from made_up_text import c4_lines, write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain
from preprocessing.corpora import NO_TEXT, Entry
from preprocessing.duplicates import find_duplicates, hashes


def test_all_but_the_first_are_found():
    rng = random.Random(0)
    items = [
        [Entry(k + 1, {"text": str(rng.randrange(400))}) for k in range(rng.randrange(200))]
        for _ in range(8)
    ]
    items[3].append(Entry(999, NO_TEXT))
    seen: set[str] = set()
    expected: list[list[int]] = [[] for _ in items]
    for item, numbers in zip(items, expected, strict=True):
        for number, record, _ in item:
            if isinstance(record, str):
                continue
            if record["text"] in seen:
                numbers.append(number)
            seen.add(record["text"])
    found = find_duplicates([hashes(item) for item in items])
    assert [numbers.tolist() for numbers in found] == expected
    assert sum(map(len, expected)) > 100


def test_a_dataset_holds_every_text_once(command, tokenizer_path, tmp_path):
    lines = c4_lines(0, 30)
    write_lines(tmp_path / "c4-0.json.gz", lines[:20])
    write_lines(tmp_path / "c4-1.jsonl", [*lines[10:25], "{}", lines[24]])
    write_lines(tmp_path / "c4-2.json.gz", lines)
    arguments = ["--input", tmp_path / "c4-*", "--tokenizer", tokenizer_path]
    for name, more in (("all", []), ("once", ["--deduplicate"])):
        command(pretrain.main, *arguments, "--output", tmp_path / name / "c4", *more)
    every, once = Dataset(tmp_path / "all/c4"), Dataset(tmp_path / "once/c4")
    assert once.manifest["counts"]["excluded"]["duplicate"] == 10 + 1 + 25
    assert once.manifest["settings"]["deduplicate"] is True
    urls = [sample.metadata["url"] for sample in once]
    first = dict.fromkeys(sample.metadata["url"] for sample in every)
    assert urls == list(first)  # in the order of their first appearance
    assert len(set(urls)) < len(every)
    # The working files are gone, and a lost shard is made again all the same.
    assert not list((once.path / ".items").glob("*/*"))
    lost = once.path / "c4-00001-00000.tar"
    content = lost.read_bytes()
    lost.unlink()
    command(pretrain.main, *arguments, "--output", tmp_path / "once/c4", "--deduplicate")
    assert lost.read_bytes() == content


def test_another_choice_is_another_dataset(command, tokenizer_path, tmp_path, capsys):
    write_lines(tmp_path / "c4-0.jsonl", [json.dumps({"text": "One. Two. Three. Four. Five."})])
    arguments = ["--input", tmp_path / "c4-*", "--tokenizer", tokenizer_path]
    command(pretrain.main, *arguments, "--output", tmp_path / "c4")
    try:
        command(pretrain.main, *arguments, "--output", tmp_path / "c4", "--deduplicate")
    except ValueError as error:
        assert "deduplicate was not set, is True" in str(error)
    else:
        raise AssertionError("not refused")
