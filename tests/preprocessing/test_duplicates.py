"""Deduplication keeps the first of equal texts across all inputs."""

import errno
import json
import os
import random
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from made_up_text import c4_lines, write_lines

from pipeline.common.command_line import described
from pipeline.shards import Dataset
from preprocessing import pretrain
from preprocessing.jobs.duplicates import (
    ROWS,
    DuplicateKeys,
    KeyPlan,
    find_duplicates,
    find_pairs,
    part_of,
    reasons,
    sorted_run,
)
from preprocessing.readers.entries import NO_TEXT, Entry


def found_among(items, keys, rows=ROWS) -> list[dict[int, str]]:
    """What does not stay of each item of entries, as the stages of a job find it."""
    made = [keys.of(number, entries) for number, entries in enumerate(items)]
    plan = KeyPlan.of([one.shape[1] for one in made], rows)
    runs = [sorted_run(made[slice(*run)]) for run in plan.runs]
    pairs = [
        find_pairs([part_of(run, part, plan.parts) for run in runs]) for part in range(plan.parts)
    ]
    found = find_duplicates(len(pairs), pairs.__getitem__)
    return [reasons(found, number) for number in range(len(items))]


@pytest.mark.parametrize("rows", [ROWS, 40])
def test_all_but_the_first_are_found(rows):
    rng = random.Random(0)
    items = [
        [Entry(k + 1, {"text": str(rng.randrange(400))}) for k in range(rng.randrange(200))]
        for _ in range(8)
    ]
    items[3].append(Entry(999, NO_TEXT))
    seen: set[str] = set()
    expected: list[dict[int, str]] = [{} for _ in items]
    for item, numbers in zip(items, expected, strict=True):
        for number, record, _ in item:
            if isinstance(record, str):
                continue
            if record["text"] in seen:
                numbers[number] = "duplicate"
            seen.add(record["text"])
    assert found_among(items, DuplicateKeys(exact=True), rows) == expected
    assert sum(map(len, expected)) > 100


def test_the_lowest_of_all_that_pairs_connect_stays():
    rng = random.Random(1)
    pairs = np.array([rng.sample(range(300), 2) for _ in range(170)], np.uint64).T
    pairs = np.vstack([pairs.max(0), pairs.min(0), np.zeros(170, np.uint64)])
    lowest = {document: document for document in pairs[:2].ravel().tolist()}
    for _ in range(300):
        for one, other in pairs[:2].T.tolist():
            lowest[one] = lowest[other] = min(lowest[one], lowest[other])
    parts = np.array_split(pairs, 3, axis=1)
    found = find_duplicates(3, parts.__getitem__)
    assert found[0].tolist() == sorted(one for one, other in lowest.items() if one != other)
    assert not found[1].any()


def test_a_plan_bounds_what_is_in_memory():
    counts = [*[30] * 100, 500, 0, 10]
    plan = KeyPlan.of(counts, rows=100)
    assert [end - start for start, end in plan.runs] == [3] * 33 + [1, 1, 2]
    assert list(plan.rows) == [90] * 33 + [30, 500, 10]
    assert plan.parts == 64  # the power of two from 36
    assert KeyPlan.of([0, 0]) == KeyPlan([(0, 2)], [0], 1)


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
    # The working files are gone; a lost shard is made again all the same.
    assert not list((once.path / ".items").glob("*/*"))
    lost = once.path / "c4-00001-00000.tar"
    content = lost.read_bytes()
    lost.unlink()
    command(pretrain.main, *arguments, "--output", tmp_path / "once/c4", "--deduplicate")
    assert lost.read_bytes() == content


def test_what_a_filter_leaves_out_is_no_first_copy(command, tokenizer_path, tmp_path):
    text = "One is. Two is. Three is. Four is. Five is."
    texts = {"https://bad.org/1": text, "https://a.org/2": text + "\n", "https://a.org/3": text}
    texts["https://a.org/4"] = " \r\n" + text.replace("Two", "Ten") + " \n\n"
    texts["https://a.org/5"] = text.replace("Two", "Ten")
    for number, part in enumerate((list(texts.items())[:1], list(texts.items())[1:])):
        lines = [json.dumps({"text": text, "url": url}) for url, text in part]
        write_lines(tmp_path / f"c4-{number}.jsonl", lines)
    (tmp_path / "list").write_text("bad.org")
    arguments = ["--input", tmp_path / "c4-*", "--tokenizer", tokenizer_path, "--deduplicate"]
    arguments += ["--blocked_domains", tmp_path / "list", "--output", tmp_path / "out"]
    command(pretrain.main, *arguments)
    dataset = Dataset(tmp_path / "out")
    assert [s.metadata["url"] for s in dataset] == ["https://a.org/2", "https://a.org/4"]
    assert dataset.manifest["counts"]["excluded"] == {"blocked domain": 1, "duplicate": 2}


def test_few_files_are_open_at_a_time(command, tokenizer_path, tmp_path):
    for number in range(40):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number % 20, 2))
    arguments = ["--input", tmp_path / "c4-*", "--tokenizer", tokenizer_path, "--deduplicate"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        command(pretrain.main, *arguments, "--output", tmp_path / "c4")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert Dataset(tmp_path / "c4").manifest["counts"]["excluded"]["duplicate"] == 40


def test_a_limit_of_open_files_is_named_with_the_remedy():
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "shards/x.npy")
    assert re.fullmatch(
        r"shards/x\.npy: Too many open files \(this process may open [\d,]+\); raise the limit, "
        "as by `ulimit -n 65536`",
        described(error),
    )


def test_deduplication_is_a_setting_of_the_folder(command, tokenizer_path, tmp_path):
    write_lines(tmp_path / "c4-0.jsonl", [json.dumps({"text": "One. Two. Three. Four. Five."})])
    arguments = ["--input", tmp_path / "c4-*", "--tokenizer", tokenizer_path]
    command(pretrain.main, *arguments, "--output", tmp_path / "c4")
    with pytest.raises(ValueError, match="deduplicate was not set, now True"):
        command(pretrain.main, *arguments, "--output", tmp_path / "c4", "--deduplicate")
