"""How every command ends where a user, a pipe or a terminal stops it."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.common.command_line import exit_on_user_error

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import sys
from pipeline.common.command_line import exit_on_user_error
with exit_on_user_error():
    for _ in range(int(sys.argv[1])):
        print("L’été.")
"""


def printed(lines: int, **options: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(lines)], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("ascii", rb"L\u2019\xe9t\xe9."), ("latin-1:strict", b"L\\u2019\xe9t\xe9."),
     ("utf-8:strict", "L’été.".encode())],
)  # fmt: skip
def test_letters_that_a_terminal_lacks_become_escapes(encoding, expected):
    output, error = printed(1, env={"PYTHONIOENCODING": encoding}).communicate()
    assert (output, error) == (expected + b"\n", b"")


def test_a_reader_that_closes_the_pipe_ends_it_without_a_word():
    process = printed(100_000)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


def test_an_interrupt_is_one_line(capsys):
    with pytest.raises(SystemExit) as end, exit_on_user_error():
        raise KeyboardInterrupt
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_file_name_that_is_not_utf_8_is_named(capsys):
    with pytest.raises(SystemExit) as end, exit_on_user_error():
        Path("caf\udce9.txt").read_bytes()
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: caf\\xe9.txt: No such file or directory\n"
