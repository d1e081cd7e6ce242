"""What a pattern matches and cannot be read is refused or named, never left out in silence."""

import gzip

import pytest
from jobs import arguments
from made_up_text import c4_lines, write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    write_lines(folder / "c4-0.json.gz", c4_lines(0, 20))
    return folder


@pytest.fixture
def refusal(corpus, exit_of, tokenizer_path, tmp_path):
    """The error line of a job over `corpus`/*."""

    def run(*more: str) -> str:
        options = arguments(corpus, tokenizer_path, tmp_path / "out", *more)
        status, _, errors = exit_of(pretrain.main, *options)
        assert status == 2 and errors.count("\n") == 1, errors
        return errors

    return run


def test_a_link_to_nothing(corpus, refusal):
    (corpus / "c4-1.json.gz").symlink_to("../blobs/gone")
    assert "c4-1.json.gz is a link to ../blobs/gone, which is not there; download" in refusal()


def test_a_folder_that_a_pattern_matches(corpus, refusal):
    (corpus / "c4-more").mkdir()
    assert f"{corpus / 'c4-more'} is a folder; give its files too, as '" in refusal()
    (corpus / "c4-more").rmdir()


@pytest.mark.parametrize("more", [(), ("--dry_run",)])
def test_a_compressed_file_without_a_byte(corpus, refusal, more):
    (corpus / "c4-1.json.gz").touch()
    assert "c4-1.json.gz has no bytes, so it is not compressed; download it again" in refusal(*more)


def test_files_without_documents_are_named(corpus, exit_of, tokenizer_path, tmp_path):
    (corpus / "c4-1.jsonl").write_bytes(b"")
    (corpus / "c4-2.json.gz").write_bytes(gzip.compress(b"\n\n"))
    options = arguments(corpus, tokenizer_path, tmp_path / "out")
    status, output, _ = exit_of(pretrain.main, *options)
    assert status == 0
    assert "; input files without documents: 2 (c4-1.jsonl, c4-2.json.gz)" in output
    empty = Dataset(tmp_path / "out").manifest["empty_inputs"]
    assert empty == {"files": 2, "first": ["c4-1.jsonl", "c4-2.json.gz"]}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--output", ""], "argument --output: is empty"),
        (["--split", ""], "argument --split: is empty"),
        (["--input", ""], "--input is empty"),
        (["--work_dir", "s3://corpus/work"], "argument --work_dir: s3://corpus/work is on a store"),
        (["--tokenizer", "s3://corpus/t5.model"], "argument --tokenizer: s3://corpus/t5.model is"),
        (
            ["--decontaminate", "s3://c/test.jsonl"],
            "--decontaminate s3://c/test.jsonl is on a store",
        ),
        (["--language_threshold", "0.9"], "--language_threshold is of use with --language only"),
        (["--decontaminate_ngram", "5"], "--decontaminate_ngram is of use with --decontaminate on"),
        (["--decontaminate_share", "0.5"], "--decontaminate_share is of use with --decontaminate"),
        (["--min_characters", "9", "--max_characters", "8"], "--min_characters 9 is more than --"),
        (["--near_duplicates", "0.01"], "find 90% of the pairs from a similarity of 0.021 on"),
    ],
)
def test_options_that_would_be_ignored_or_go_astray(
    corpus, exit_of, tokenizer_path, tmp_path, monkeypatch, more, said
):
    monkeypatch.chdir(tmp_path)
    status, _, errors = exit_of(
        pretrain.main, *arguments(corpus, tokenizer_path, tmp_path / "out", *more)
    )
    assert status == 2 and said in errors, errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]


def test_where_no_document_is_kept_only_the_jobs_own_files_are_to_be_removed(
    corpus, exit_of, tokenizer_path, tmp_path
):
    options = arguments(corpus, tokenizer_path, tmp_path, "--url_pattern", "nowhere")
    status, _, errors = exit_of(pretrain.main, *options)
    assert status == 2 and "docs/data.md" not in errors
    assert f"remove {tmp_path / '.items'} and {tmp_path / tmp_path.name}-* before" in errors


def test_a_dry_run_says_that_filters_leave_nothing(corpus, exit_of, tokenizer_path, tmp_path):
    options = arguments(corpus, tokenizer_path, tmp_path / "out", "--min_characters", "100000")
    status, output, _ = exit_of(pretrain.main, *options, "--dry_run")
    assert status == 0 and "c4-0.json.gz: none of its first 20 records is kept (too short" in output


def test_a_dry_run_names_the_evaluation_texts_alone(corpus, refusal, tmp_path):
    (tmp_path / "empty.jsonl").write_text('{"text": "few words"}\n')
    said = refusal("--dry_run", "--decontaminate", str(tmp_path / "empty.jsonl"))
    assert said.startswith(f"error: --decontaminate {tmp_path / 'empty.jsonl'}: no text has 13")
