"""What the command lines of evaluation share: types of values, and how a user's error ends."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from pipeline.command_line import described
from pipeline.model.generation import DecodingStrategy


@contextmanager
def exit_on_user_error(speaks: bool = True) -> Iterator[None]:
    """Input that cannot be used ends the program with one line and status 2, no traceback.

    Of processes that meet the same error one `speaks`.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if speaks:
            print(f"error: {described(error)}", file=sys.stderr)
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


def gibibytes(text: str) -> int:
    """A size in GiB, such as 0.5, in bytes."""
    try:
        size = round(float(text) * 2**30)
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of GiB, 0 or more")
    return size


def add_strategy_options(parser: argparse.ArgumentParser) -> None:
    """The options of how summaries are generated, for `take_strategy`."""
    group = parser.add_argument_group("generation", "greedy unless --num_beams or --top_p is given")

    def add(name: str, kind: Callable[[str], float], text: str) -> None:
        default = getattr(DecodingStrategy, name)
        shown = "" if default is None else f" (default {default})"
        group.add_argument(f"--{name}", type=kind, default=default, help=text + shown)

    add("max_new_tokens", int, "longest summary, in tokens")
    add("min_new_tokens", int, "shortest summary, in tokens")
    add("num_beams", int, "beams of a beam search; 1: none")
    add("length_penalty", float, "power of the length that a beam's score is divided by")
    add("top_p", float, "sample from the likeliest tokens of this probability together")
    add("temperature", float, "what the logits are divided by before sampling")
    add("seed", int, "seed of the samples")
    add("no_repeat_ngram_size", int, "no sequence of so many tokens comes twice; 0: no rule")
    add("memory_budget", gibibytes, "most GiB of cross-attention's cache (default: as fits)")


def take_strategy(values: dict[str, Any]) -> DecodingStrategy:
    """The strategy among the parsed values, whose options are taken out.

    Raises ValueError naming the option that is impossible.
    """
    return DecodingStrategy(**{one.name: values.pop(one.name) for one in fields(DecodingStrategy)})
