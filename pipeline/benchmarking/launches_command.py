"""The command that counts launches; `launches` imports more than a GPU node may have."""

import argparse
from pathlib import Path
from typing import Any

from pipeline.common.command_line import above_zero, count_from
from pipeline.common.files import replace_json
from pipeline.common.gpus import GPUS, LAUNCH_SECONDS

SHAPES = ((8, 450, 130), (8, 4096, 512), (16, 4096, 512))
"""Samples, source and target positions: a micro-batch as the recipe makes it of C4, on average,
and full ones."""
DECODED = ((8, 4096),)
"""Documents and source positions."""


def add(commands: Any) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "launches", help="kernel launches, bytes and operations of a step on a card, without one"
    )
    command.set_defaults(run=count_launches)
    command.add_argument("--config", help="recipe, a path or a shipped name (pretrain_c4)")
    command.add_argument(
        "--shapes", type=_sizes, nargs="+", metavar="BxLxT",
        help="training steps: samples, source and target positions of a micro-batch "
        "(8x450x130 8x4096x512 16x4096x512, unless --decode is given)",
    )  # fmt: skip
    command.add_argument(
        "--decode", type=_sizes, nargs="*", metavar="BxL",
        help="greedy decoding steps: documents, source positions (8x4096)",
    )  # fmt: skip
    command.add_argument("--card", default="h100", help=f"{', '.join(GPUS)} (h100)")
    command.add_argument(
        "--launch_us", type=above_zero, default=1e6 * LAUNCH_SECONDS, metavar="US",
        help="microseconds that the host needs for a launch "
        f"({1e6 * LAUNCH_SECONDS:g}, measured on an H100)",
    )  # fmt: skip
    command.add_argument("--json", type=Path, help="also write the figures to this file")


def count_launches(options: argparse.Namespace) -> int:
    """Launches, bytes and operations of steps on a card, by part, and what they take at least."""
    from pipeline.benchmarking import launches

    if options.card not in GPUS:
        raise ValueError(f"--card {options.card} is unknown: give {', '.join(GPUS)}")
    decoded = DECODED if options.decode == [] else options.decode or ()
    trained = options.shapes or (() if decoded else SHAPES)
    found = launches.measure(
        options.config, trained, decoded, options.card, options.launch_us / 1e6
    )
    print("\n".join(launches.as_text(found)))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        replace_json(options.json, found)
    return 0


def _sizes(text: str) -> tuple[int, ...]:
    """BxLxT, or BxL; `measure` checks which."""
    return tuple(count_from(1)(part) for part in text.split("x"))
