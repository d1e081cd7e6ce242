"""What the command lines of evaluation share: types of values, and how a user's error ends."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Input that cannot be used ends the program with one line and status 2, no traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def count_from(least: int) -> Callable[[str], int]:
    """An integer of at least `least`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer of at least {least}")
        return int(text)

    return parse


def source_length(text: str) -> int:
    """A source's longest length in tokens: at least 2 (one and EOS), or 0 for the whole text."""
    if not text.isdecimal() or int(text) == 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 0 (whole text) or at least 2 tokens")
    return int(text)
