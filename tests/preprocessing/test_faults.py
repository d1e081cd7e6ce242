"""Faults of a cluster: kills, full disks, lost files, huge documents."""

import json
import random
import shutil
import subprocess
import sys
import time

import pytest
from jobs import LIMIT_SECONDS, ROOT, arguments, kill, launch, start
from made_up_text import c4_lines, tree, write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain

VANISHING = """
import os
def lose(text, url):
    if os.path.exists(os.environ["LOST"]):
        os.remove(os.environ["LOST"])
    return True
"""


def kill_repeatedly(command, tokenizer_path, tmp_path, kills: int, ranks: int) -> None:
    """Kill a job at random moments, then finish it: the bytes of an undisturbed job."""
    for number in range(4):
        write_lines(tmp_path / f"c4-{number}.json.gz", c4_lines(number, 400))
    options = arguments(tmp_path, tokenizer_path, tmp_path / "undisturbed/c4", "--deduplicate")
    started = time.monotonic()
    whole = launch(*options, ranks=ranks)
    duration = time.monotonic() - started
    assert whole.returncode == 0, whole.stderr
    output = tmp_path / "killed/c4"
    options = arguments(tmp_path, tokenizer_path, output, "--deduplicate")
    rng = random.Random(ranks)
    for _ in range(kills):
        process = start(*options, ranks=ranks)
        time.sleep(rng.uniform(0.3, 1.0) * duration)
        kill(output)
        process.communicate()
    command(pretrain.main, *options)
    assert tree(tmp_path / "killed/c4") == tree(tmp_path / "undisturbed/c4")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 2])
def test_killed_at_random_moments_then_the_same_bytes(command, tokenizer_path, tmp_path, ranks):
    kill_repeatedly(command, tokenizer_path, tmp_path, 3, ranks)


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [0, 2])
def test_fifty_kills_then_the_same_bytes(command, tokenizer_path, tmp_path, ranks):
    kill_repeatedly(command, tokenizer_path, tmp_path, 50, ranks)


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run(
        ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
    ).returncode
    != 0
    if shutil.which("unshare")
    else True,
    reason="a small file system cannot be mounted here",
)
def test_a_full_disk_is_one_line_and_free_space_is_enough_to_resume(
    command, tokenizer_path, tmp_path
):
    corpus = tmp_path / "corpus"
    for number in range(3):
        write_lines(corpus / f"c4-{number}.json.gz", c4_lines(number, 400))
    disk = tmp_path / "disk"
    disk.mkdir()
    job = [sys.executable, str(ROOT / "preprocessing/pretrain.py")]
    job += arguments(corpus, tokenizer_path, disk / "c4")
    script = f"""
        mount -t tmpfs -o size=300k none {disk}
        "$@"; echo "status $?"
        test -e {disk}/c4/manifest.json && echo complete
        ls -A {disk}/c4
        mount -o remount,size=50m {disk}
        "$@" && cp -r {disk}/c4 {tmp_path}/made
    """
    result = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *job],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    assert "status 2" in result.stdout
    assert "complete" not in result.stdout
    assert ".tmp" not in result.stdout  # unfinished files take no space
    assert result.stderr.count("error: ") == 1
    assert "No space left on device; make room where the output is" in result.stderr
    assert "Traceback" not in result.stderr
    command(pretrain.main, *arguments(corpus, tokenizer_path, tmp_path / "other/c4"))
    assert tree(tmp_path / "made") == tree(tmp_path / "other/c4")


def test_a_file_that_disappears_is_named_and_the_rest_is_kept(
    exit_of, tokenizer_path, tmp_path, monkeypatch
):
    for number in range(3):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number, 50))
    (tmp_path / "vanish.py").write_text(VANISHING)
    monkeypatch.syspath_prepend(tmp_path)
    lost = tmp_path / "c4-1.jsonl"
    content = lost.read_bytes()
    options = arguments(tmp_path, tokenizer_path, tmp_path / "out", "--accept", "vanish:lose")
    monkeypatch.setenv("LOST", str(lost))
    status, _, errors = exit_of(pretrain.main, *options)
    assert status == 2
    assert errors.count("error: ") == 1
    assert "c4-1.jsonl: No such file or directory" in errors
    assert (tmp_path / "out/.items/00000.json").exists()
    lost.write_bytes(content)
    monkeypatch.setenv("LOST", "")
    assert exit_of(pretrain.main, *options)[0] == 0
    assert len(Dataset(tmp_path / "out").shards) == 3


@pytest.mark.slow
def test_huge_documents_take_linear_time(command, tokenizer_path, tmp_path):
    words = "the old stone mill by the river where grey herons fish until evening "
    one_sentence = words * (2 * 2**20 // len(words))
    many = " ".join(f"The {k} herons fish." for k in range(100_000))
    long_line = "".join(f"Line {k} of a large document.\n" for k in range(10 * 2**20 // 32))
    lines = [json.dumps({"text": text}) for text in (one_sentence, many, long_line)]
    assert len(lines[2]) > 10e6
    write_lines(tmp_path / "c4-0.jsonl", [*lines, *c4_lines(0, 5)])
    command(pretrain.main, *arguments(tmp_path, tokenizer_path, tmp_path / "out"))
    dataset = Dataset(tmp_path / "out")
    assert dataset.manifest["counts"]["documents"] == 8
    assert dataset.manifest["counts"]["excluded"]["too few sentences"] >= 1
    assert len(dataset[0].metadata["gap_sentences"]) == 20_000
    assert len(dataset[0].source) == 4096
    assert len(dataset[0].target) == 910
    assert len(dataset[0].metadata["source_sentence_ends"]) < 4096


def test_bytes_that_are_not_text_are_counted(command, tokenizer_path, tmp_path):
    good = [line.encode() for line in c4_lines(0, 20)]
    odd = [
        b'{"text": "\xff\xfe"}',
        b'{"text": "a\0b"}',
        b"\0" * 50,
        bytes(range(255, 10, -1)),
    ]
    (tmp_path / "c4-0.jsonl").write_bytes(b"\n".join([*good, *odd]))
    (tmp_path / "c4-1.jsonl").write_bytes(b"")
    command(pretrain.main, *arguments(tmp_path, tokenizer_path, tmp_path / "out"))
    counts = Dataset(tmp_path / "out").manifest["counts"]
    assert counts["documents"] == 24
    excluded = counts["excluded"]
    assert excluded["bad encoding"] + excluded["not JSON"] == 4
