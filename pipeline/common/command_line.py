"""What commands share: types of values; a user's error ends in one line, with status 2."""

import argparse
import errno
import io
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from pipeline.common.units import GIB

INTERRUPTED, CLOSED_PIPE = 130, 141  # as a shell shows a program ended by SIGINT or SIGPIPE
RESUME_LATER = 85  # exit status of work that was stopped and saved, to be resumed
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # of launchers and Slurm


class Stopped(BaseException):
    """A signal asked to stop; its name is the message."""


class Parser(argparse.ArgumentParser):
    """argparse without the usage above an error, and without abbreviated options."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help explains the arguments)\n")


def add_checks(parser: argparse.ArgumentParser) -> None:
    """Add --dry_run and --check_arguments, the latter for a job whose inputs do not exist yet."""
    parser.add_argument("--dry_run", action="store_true", help="check all inputs, then exit")
    parser.add_argument(
        "--check_arguments", action="store_true",
        help="check what needs no result of an earlier stage, then exit",
    )  # fmt: skip


def program(file: str) -> str:
    """A command's name in its --help: the console script that runs it, else its file."""
    called = Path(sys.argv[0]).name
    return called if called.startswith("locost-") else file


def shown(name: object) -> str:
    """A path as it can be printed anywhere: bytes that are not UTF-8 become escapes."""
    return str(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def described(error: Exception) -> str:
    """An error's line; an error of the system begins with the file, not with a number."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"{shown(error.filename or 'a file')}: {error.strerror} (this process may open "
            f"{limit:,}); raise the limit, as by `ulimit -n 65536`"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        return f"{error.strerror}; make room where the output is, then run the same command again"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{shown(error.filename)}: {error.strerror}"
    return " ".join(line.strip() for line in str(error).splitlines())


def escape_unprintable() -> None:
    """Let letters that standard output cannot show become escapes, as on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def close_pipe() -> None:
    """After BrokenPipeError (the reader, such as `head`, is gone): drop what is still buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def raise_on_stop_signals() -> None:
    """Let the signals of launchers raise Stopped at once, for work that needs no last save."""

    def stop(number: int, _: object) -> NoReturn:
        raise Stopped(signal.Signals(number).name)

    for number in STOP_SIGNALS:
        signal.signal(number, stop)


@contextmanager
def exit_on_user_error(speaks: bool = True) -> Iterator[None]:
    """Input that cannot be used (ValueError, OSError) ends the program: one line, status 2.

    Ctrl-C is one line too, with status 130. Letters that standard output cannot show become
    escapes. Where several processes meet the same error, only one `speaks`. Also a decorator of
    `main`.
    """
    escape_unprintable()
    try:
        yield
    except KeyboardInterrupt:
        if speaks:
            print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        close_pipe()
        sys.exit(CLOSED_PIPE)
    except (ValueError, OSError) as error:
        if speaks:
            print(f"error: {described(error)}", file=sys.stderr)
        sys.exit(2)


def count_from(minimum: int) -> Callable[[str], int]:
    """An integer of at least `minimum`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer of at least {minimum}")
        return int(text)

    return parse


def above_zero(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def source_length(text: str) -> int:
    """Maximum source length in tokens: at least 2 (one and EOS), or 0 for the whole text."""
    if not text.isdecimal() or int(text) == 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 0 (whole text) or at least 2 tokens")
    return int(text)


def gibibytes(text: str) -> int:
    """A size in GiB, such as 0.5, in bytes."""
    try:
        size = round(float(text) * GIB)
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of GiB, 0 or more")
    return size
