"""The command line options of generation."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from pipeline.common.command_line import count_from, gibibytes
from pipeline.distributed.sequence_parallel import OPTION
from pipeline.model.generation import DecodingStrategy, EarlyStopping


def add_strategy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `take_strategy` reads."""
    group = parser.add_argument_group("generation", "greedy unless --num_beams or --top_p is given")

    def add(name: str, kind: Callable[[str], object], text: str, **more: Any) -> None:
        default = getattr(DecodingStrategy, name)
        shown = "" if default is None else f" (default {str(default).lower()})"
        group.add_argument(f"--{name}", type=kind, default=default, help=text + shown, **more)

    add("max_new_tokens", int, "longest summary, in tokens")
    add("min_new_tokens", int, "shortest summary, in tokens")
    add("num_beams", int, "beams of a beam search; 1: none")
    add("length_penalty", float, "a beam's score is divided by its length to this power")
    add(
        "early_stopping", early_stopping,
        "end a beam search with num_beams results (true), when the best running beam is worse than "
        "they are (false), or when it can only get worse (never)", metavar="{true,false,never}",
    )  # fmt: skip
    add("top_p", float, "sample from the likeliest tokens with this total probability")
    add("temperature", float, "divisor of the logits before sampling")
    add("seed", int, "seed of sampling")
    add("no_repeat_ngram_size", int, "no sequence of N tokens is repeated; 0: no limit")
    add("memory_budget", gibibytes, "maximum GiB of cross-attention's cache (default: as fits)")


def add_sharing_option(parser: argparse.ArgumentParser) -> None:
    """Add `--sequence_parallel_size`."""
    parser.add_argument(
        OPTION,
        type=count_from(1),
        default=1,
        help="processes that share each document, which their launcher has to start; LOCOST only "
        "(default 1)",
    )


def early_stopping(text: str) -> EarlyStopping:
    """The value of a command line's `--early_stopping`."""
    choices: dict[str, EarlyStopping] = {"true": True, "false": False, "never": "never"}
    if text.lower() not in choices:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {', '.join(choices)}")
    return choices[text.lower()]


def take_strategy(values: dict[str, Any]) -> DecodingStrategy:
    """The strategy given by the parsed values, from which its options are removed.

    Raises ValueError naming the invalid option.
    """
    return DecodingStrategy(**{one.name: values.pop(one.name) for one in fields(DecodingStrategy)})
