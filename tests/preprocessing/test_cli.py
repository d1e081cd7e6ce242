"""`locost-preprocess COMMAND ...` is `python -m preprocessing.COMMAND ...`."""

import re
import subprocess
import sys

import pytest
from jobs import LIMIT_SECONDS, MPI_ENVIRONMENT, MPIRUN, ROOT, arguments
from made_up_text import tree

from preprocessing import cli, pretrain

SCRIPT = "import sys; from preprocessing.cli import main; sys.exit(main())"  # as pip writes it


@pytest.fixture
def run_cli(monkeypatch, capsys):
    """`run_cli(*arguments)`: (exit status, output, errors)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["locost-preprocess", *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


def test_it_runs_the_command(run_cli, corpus, tokenizer_path, undisturbed, tmp_path):
    output = tmp_path / "c4"
    status, said, _ = run_cli("pretrain", *arguments(corpus, tokenizer_path, output))
    assert status == 0 and said.startswith(f"{output}: ")
    assert tree(output) == tree(undisturbed)
    status, said, _ = run_cli("show", output, "--sample", 0)
    assert status == 0 and "marked by >:" in said


def test_errors_and_help_are_the_commands_own(run_cli, exit_of, corpus, tokenizer_path, tmp_path):
    good = arguments(corpus, tokenizer_path, tmp_path / "c4")
    for more in (["--ratio", 2], ["--block_size", 0], ["--metric", "f2"], ["--help"]):
        assert run_cli("pretrain", *good, *more) == exit_of(pretrain.main, *good, *more)
    status, _, errors = run_cli("show", tmp_path / "none")
    assert status == 2
    assert errors.startswith("error: no dataset folder") and errors.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["retokenize"], ["--input"]])
def test_an_unknown_command_is_one_line_and_status_2(run_cli, words):
    status, said, errors = run_cli(*words)
    assert (status, said, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: ")


def test_help_lists_the_commands(run_cli):
    status, said, _ = run_cli("--help")
    assert status == 0
    for name in ("pretrain", "finetune", "tokenizer", "show"):
        assert re.search(rf"^    {name}\s", said, re.M), name


@pytest.mark.slow
def test_a_failing_rank_aborts_the_others(tokenizer_path, tmp_path):
    """Only rank 0 looks at the inputs first; the other rank waits in a collective call."""
    options = arguments(tmp_path, tokenizer_path, tmp_path / "out")  # no inputs there
    result = subprocess.run(
        [MPIRUN, *"--bind-to none --oversubscribe -n 2".split(),
         sys.executable, "-c", SCRIPT, "pretrain", *options],
        cwd=ROOT, env=MPI_ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_SECONDS,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.count("error: no file matches --input") == 1
