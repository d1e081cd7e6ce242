"""The command that measures processes that share a document; `sequence` has what it runs."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from pipeline.common.command_line import count_from
from pipeline.common.files import replace_json
from pipeline.distributed.device import device_name

LENGTHS = (1 << 14, 1 << 16, 1 << 18)
PROCESSES = (1, 2, 4)


def add(commands: Any) -> None:
    """Add the subcommand, and the one that runs in each of its processes."""
    command = commands.add_parser(
        "sequence", help="memory and bytes sent of processes that share a document, on CPUs"
    )
    command.set_defaults(run=measure_sequences)
    command.add_argument(
        "--config", default="debug.yaml", help="recipe that gives the sizes (debug)"
    )
    for name, values, meaning in (
        ("lengths", LENGTHS, "source tokens"), ("processes", PROCESSES, "that share a document"),
    ):  # fmt: skip
        command.add_argument(
            f"--{name}", type=count_from(1), nargs="+", default=values, metavar="N",
            help=f"{meaning} ({' '.join(map(str, values))})",
        )  # fmt: skip
    command.add_argument("--tokens", type=count_from(1), default=128, help="target tokens (128)")
    command.add_argument("--vocab_size", type=count_from(1), default=1000, help="ids (1000)")
    command.add_argument("--recompute", action="store_true", help="with gradient checkpointing")
    command.add_argument(
        "--output", type=Path, default=Path("runs/benchmarks"),
        help="folder for sequence.json (runs/benchmarks)",
    )  # fmt: skip
    command = commands.add_parser("sequence-process")
    command.set_defaults(run=measure_process)
    command.add_argument("request")


def measure_sequences(options: argparse.Namespace) -> int:
    """Peak memory and bytes sent of the processes that share a document, against the formulas."""
    from pipeline.benchmarking import sequence

    found = sequence.measure(
        options.config, options.lengths, options.processes, options.tokens, options.vocab_size,
        options.recompute,
    )  # fmt: skip
    print("\n".join(sequence.as_text(found)))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "sequence.json"
    where = {"device": device_name(torch.device("cpu")), "torch": torch.__version__}
    replace_json(path, {"command": "sequence", **where, **found})
    print(path)
    return 0


def measure_process(options: argparse.Namespace) -> int:
    """One of the processes: its result as JSON."""
    from pipeline.benchmarking import sequence

    print(json.dumps(sequence.measure_here(options.request)))
    return 0
