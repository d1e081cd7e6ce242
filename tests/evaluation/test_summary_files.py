"""What summarize.py writes never costs a file of the user's, and is never read as a text."""

import json
import os
from pathlib import Path

import pytest

from pipeline.summarize import main

TEXT = "The river runs past an old stone mill.\n"


@pytest.fixture
def call(checkpoint, capsys):
    """Run the command line in this process: (status, standard error)."""

    def run(*arguments: object) -> tuple[int, str]:
        given = ["--checkpoint", str(checkpoint), "--max_new_tokens", "4", *map(str, arguments)]
        try:
            status = main(given)
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().err

    return run


@pytest.fixture
def book(tmp_path) -> Path:
    path = tmp_path / "books" / "a.txt"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def test_json_replaces_its_own_results_alone(call, book, tmp_path):
    results = tmp_path / "results.json"
    results.touch()
    for _ in range(2):
        assert call("--json", results, book)[0] == 0
        assert len(json.loads(results.read_bytes())["texts"]) == 1
    for other in (TEXT, "{}", "[" * 100_000):
        book.write_text(other)
        status, error = call("--json", book, results)
        assert status == 2 and "holds something else" in error and error.count("\n") == 1
        assert book.read_text() == other


def test_json_is_a_regular_file(call, book, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    status, error = call("--json", pipe, book)
    assert status == 2 and "cannot be written" in error
    assert pipe.is_fifo()


def test_summaries_in_a_given_folder_are_not_summarised_again(call, book):
    for output in (book.parent, book.parent / "summaries"):
        before = {*book.parent.rglob("*")}
        for _ in range(2):
            assert call("--output_dir", output, book.parent)[0] == 0
        written = {*book.parent.rglob("*")} - before - {output}
        assert written == {output / "a.txt.summary.txt"}
        (output / "a.txt.summary.txt").unlink()


def test_a_given_text_is_not_overwritten_by_the_summary_of_another(call, book):
    own = book.with_name("a.txt.summary.txt")
    own.write_text(TEXT)
    status, error = call("--output_dir", book.parent, book, own)
    assert status == 2 and "would be overwritten by the summary of" in error
    assert own.read_text() == TEXT
