"""Dry runs: their findings and refusals; they write nothing."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import arguments, launch
from made_up_text import c4_lines, tree, write_lines

from preprocessing import finetune, pretrain
from preprocessing.jobs import dry_run

DOCUMENT = "The old mill stands by the river. Herons fish there until evening."


@pytest.fixture
def check(exit_of) -> Callable[..., tuple[int, str, str]]:
    """`check(main, *arguments)`: a dry run's (exit status, output, errors)."""
    return lambda main, *options: exit_of(main, *options, "--dry_run")


def refused(result: tuple[int, str, str], named: str) -> None:
    status, output, error = result
    assert (status, output) == (2, "")
    assert error.startswith("error: ") and error.count("\n") == 1
    assert named in error


def test_it_describes_the_job_and_writes_nothing(check, corpus, tokenizer_path, tmp_path):
    output = tmp_path / "new" / "c4"
    status, said, error = check(pretrain.main, *arguments(corpus, tokenizer_path, output))
    assert (status, error, said.count("\n")) == (0, "", 1)
    size = sum(path.stat().st_size for path in corpus.iterdir()) / 1e6
    assert said.startswith(f"ready: c4, inputs: 3 ({size:.1f} MB), shards to make: 3 of 3 (about ")
    assert not list(tmp_path.iterdir())


def test_the_expected_size_is_close_to_the_shards(command, check, tokenizer_path, tmp_path):
    """Extrapolated from the first of two files, the second of which is twice as long."""
    for number, count in enumerate((800, 1600)):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number, count))
    options = arguments(tmp_path, tokenizer_path, tmp_path / "out")
    said = check(pretrain.main, *options)[1]
    expected = 1e6 * float(re.search(r"about ([\d.]+) MB", said)[1])
    command(pretrain.main, *options)
    written = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar"))
    assert expected == pytest.approx(written, rel=0.2)


def test_no_size_is_expected_where_the_position_is_unknown(check, tokenizer_path, tmp_path):
    """The reader of a JSON document is at its end from the first record on."""
    pairs = [{"id": str(k), "document": DOCUMENT, "summary": "A mill."} for k in range(300)]
    (tmp_path / "long.json").write_text(json.dumps(pairs, indent=1))
    (tmp_path / "short.json").write_text(json.dumps(pairs[:2], indent=1))
    options = ["--dataset", "jsonl", "--tokenizer", tokenizer_path, "--output", tmp_path / "set"]
    said = check(finetune.main, *options, "--input", tmp_path / "long.json")[1]
    assert "shards to make: 1 of 1, free" in said
    said = check(finetune.main, *options, "--input", tmp_path / "short.json")[1]
    assert "shards to make: 1 of 1 (about 0.0 MB), free" in said


def test_a_full_disk_is_refused(check, corpus, tokenizer_path, tmp_path, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=5_000)
    monkeypatch.setattr(dry_run.shutil, "disk_usage", lambda _: full)
    options = arguments(corpus, tokenizer_path, tmp_path / "out")
    refused(check(pretrain.main, *options), "0.0 MB are free, about")


def test_it_counts_the_missing_shards_of_a_started_job(
    check, undisturbed, corpus, tokenizer_path, tmp_path
):
    output = Path(shutil.copytree(undisturbed, tmp_path / "c4"))
    options = arguments(corpus, tokenizer_path, output)
    assert "shards to make: 0 of 3, free" in check(pretrain.main, *options)[1]
    assert check(pretrain.main, *options, "--finish")[0] == 0
    (output / ".items/00001.json").unlink()
    before = tree(output)
    assert "shards to make: 1 of 3 (about" in check(pretrain.main, *options)[1]
    refused(check(pretrain.main, *options, "--finish"), "1 of 3 items are not made yet")
    refused(check(pretrain.main, *options, "--ratio", 0.5), "ratio was 0.2, now 0.5")
    assert tree(output) == before


def test_every_refusal_is_one_line(check, corpus, tokenizer_path, tmp_path):
    def refuses(named: str, source: Path, tokenizer=tokenizer_path, output="out", more=()) -> None:
        options = arguments(source, tokenizer, tmp_path / output)
        refused(check(pretrain.main, *options, *more), named)

    refuses("no tokenizer at", corpus, tokenizer=tmp_path / "none")
    refuses("is not a SentencePiece model", corpus, tokenizer=corpus / "c4-2.jsonl")
    refuses("no file matches --input", tmp_path)
    refuses("ratio is 2", corpus, more=("--ratio", 2))
    write_lines(tmp_path / "pairs/c4-0.jsonl", [json.dumps({"document": DOCUMENT})] * 300)
    refuses(
        "c4-0.jsonl: none of its first 200 records can be used (no text 200)", tmp_path / "pairs"
    )
    (tmp_path / "gz").mkdir()
    (tmp_path / "gz/c4-0.json.gz").write_bytes(gzip.compress(b"{}" * 999)[:-9])
    refuses("c4-0.json.gz is corrupt or truncated", tmp_path / "gz")
    (tmp_path / "file").write_text("")
    refuses("file is a file", corpus, output="file/out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "the 1 input files hold no documents; check --input"),
        (
            b'{"document": "\xe9", "summary": "\xe9"}\n{"document": "D.", "summary": " "}\n',
            "(bad encoding 1, no summary 1)",
        ),
        ("document,summary\nAn old mill.,é\n".encode("cp1252"), "`iconv -f CP1252 -t UTF-8`"),
        ('{"document": "Мельница у реки.", "summary": "Река."}'.encode(), "--max_unknown_share"),
    ],
    ids=("empty", "no pair", "other encoding", "other script"),
)
def test_it_refuses_what_the_job_would(command, check, tokenizer_path, tmp_path, content, named):
    source = tmp_path / ("x.csv" if content.startswith(b"document") else "x.jsonl")
    source.write_bytes(content)
    options = ["--dataset", "jsonl", "--tokenizer", tokenizer_path, "--output", tmp_path / "set"]
    refused(check(finetune.main, *options, "--input", source), named)
    with pytest.raises(ValueError, match=r"no document|be used"):
        command(finetune.main, *options, "--input", source)


def test_documents_that_the_settings_exclude_are_no_fault(check, corpus, tokenizer_path, tmp_path):
    options = arguments(corpus, tokenizer_path, tmp_path / "out")
    assert check(pretrain.main, *options, "--min_source_length", 10**6)[0] == 0


def test_the_first_record_identifies_the_format(check, tokenizer_path, tmp_path):
    record = {"article": DOCUMENT, "abstract": "A mill."}
    source = write_lines(tmp_path / "x.jsonl", [json.dumps(record)] * 9)
    options = ["--input", source, "--tokenizer", tokenizer_path, "--output", tmp_path / "set"]
    said = check(finetune.main, "--dataset", "arxiv", *options)[1]
    assert said.startswith("ready: set, inputs: 1 (0.0 MB), shards to make: 1 of 1 (about ")
    refused(check(finetune.main, "--dataset", "govreport", *options), "record 1 has the keys")
    refused(
        check(finetune.main, "--dataset", "arxiv", *options, "--source_length", 1),
        "--source_length is 1",
    )
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
def test_only_one_of_several_ranks_reports(corpus, tokenizer_path, tmp_path):
    result = launch(*arguments(corpus, tokenizer_path, tmp_path / "c4"), "--dry_run", ranks=2)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("ready: c4") == 1
    absent = launch(*arguments(tmp_path, tokenizer_path, tmp_path / "c4"), "--dry_run", ranks=2)
    assert absent.returncode == 2
    assert absent.stderr.count("error: no file matches") == 1
    assert not (tmp_path / "c4").exists()
