"""What command lines share: a wrong argument or file ends in one line, with status 2."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse without the usage above an error."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help explains the arguments)\n")


def described(error: Exception) -> str:
    """An error's line, in which the system's own begin with the file instead of a number."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
