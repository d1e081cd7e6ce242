"""A small corpus, and the command lines called in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import arguments, launch
from made_up_text import c4_lines, write_lines


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder of three C4 files: c4-0.json.gz, c4-1.json.gz, c4-2.jsonl."""
    folder = tmp_path_factory.mktemp("corpus")
    for number, suffix in enumerate((".json.gz", ".json.gz", ".jsonl")):
        write_lines(folder / f"c4-{number}{suffix}", c4_lines(number, 40))
    return folder


@pytest.fixture(scope="session")
def undisturbed(corpus, tokenizer_path, tmp_path_factory) -> Path:
    """The shards of the small corpus, made by one process in one go."""
    output = tmp_path_factory.mktemp("undisturbed") / "c4"
    result = launch(*arguments(corpus, tokenizer_path, output))
    assert result.returncode == 0, result.stderr
    return output


@pytest.fixture
def command(monkeypatch) -> Callable[..., None]:
    """`command(main, *arguments)` calls a command line's main in this process."""

    def call(main: Callable[[], None], *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        main()

    return call
