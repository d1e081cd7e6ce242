"""A small corpus, and the command lines called in this process."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import arguments
from made_up_text import c4_lines, write_lines

from preprocessing import pretrain
from preprocessing.jobs.options import run_command

Main = Callable[[], None]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder of three C4 files: c4-0.json.gz, c4-1.json.gz, c4-2.jsonl."""
    folder = tmp_path_factory.mktemp("corpus")
    for number, suffix in enumerate((".json.gz", ".json.gz", ".jsonl")):
        write_lines(folder / f"c4-{number}{suffix}", c4_lines(number, 40))
    return folder


@pytest.fixture(scope="session")
def undisturbed(corpus, tokenizer_path, tmp_path_factory) -> Path:
    """The shards of the small corpus, made by one process without interruption."""
    output = tmp_path_factory.mktemp("undisturbed") / "c4"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["command", *arguments(corpus, tokenizer_path, output)])
        pretrain.main()
    return output


@pytest.fixture(autouse=True)
def kept_sigterm_handler() -> Iterator[None]:
    """A command run in this process sets its own handler of SIGTERM, which must not outlive it."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def command(monkeypatch) -> Callable[..., None]:
    """`command(main, *arguments)` calls a command line's main in this process."""

    def call(main: Main, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        main()

    return call


@pytest.fixture
def exit_of(command, capsys) -> Callable[..., tuple[int, str, str]]:
    """`exit_of(main, *arguments)` runs a command to its end: (exit status, output, errors)."""

    def call(main: Main, *arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = 0
        try:
            run_command(lambda: command(main, *arguments))
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call
