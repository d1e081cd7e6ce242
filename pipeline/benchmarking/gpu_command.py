"""The commands of the GPU check."""

import argparse
from pathlib import Path
from typing import Any

import torch

from pipeline.benchmarking import gpu_predictions, micro_batches
from pipeline.benchmarking.gpu_check import gpu_check
from pipeline.common.command_line import count_from
from pipeline.common.files import replace_json, replace_text


def add(commands: Any) -> None:
    """Add the subcommands."""
    command = commands.add_parser("gpu", help="check a GPU: correctness, training, timings")
    command.set_defaults(run=check_gpu)
    command.add_argument("--output", type=Path, required=True, help="folder for gpu_check.json")
    command.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (cuda)")
    command.add_argument("--small", action="store_true", help="use toy sizes, for a CPU")
    command.add_argument(
        "--budget_s", type=float, default=440,
        help="seconds after which remaining sections are skipped (440)",
    )  # fmt: skip

    command = commands.add_parser(
        "micro-batches", help="record the lengths of a dataset's micro-batches, for the GPU check"
    )
    command.set_defaults(run=record_micro_batches)
    command.add_argument("--data", type=Path, required=True, help="dataset folder")
    for name, value, meaning in (
        ("batch_size", 256, "samples per update"), ("ranks", 16, "processes"),
        ("source_length", 4096, "maximum source length"),
        ("target_length", 910, "maximum target length"),
    ):  # fmt: skip
        command.add_argument(
            f"--{name}", type=count_from(1), default=value, help=f"{meaning} ({value})"
        )
    command.add_argument(
        "--accumulation", type=count_from(1), nargs="+", default=[1, 2],
        help="micro-batches per process and update: a list of them for each (1 2)",
    )  # fmt: skip
    command.add_argument("--json", type=Path, required=True, help="file to write")

    command = commands.add_parser(
        "predictions", help="the predicted speed on a GPU beside what a GPU check recorded"
    )
    command.set_defaults(run=compare_predictions)
    command.add_argument("--measured", type=Path, help="gpu_check.json of the present code (none)")
    command.add_argument("--page", type=Path, help="Markdown page whose table is replaced (none)")


def check_gpu(options: argparse.Namespace) -> int:
    """Correctness on the device, then training, then timings."""
    device = named_device(options.device)
    if device.type == "cpu" and options.small:
        torch.set_num_threads(1)  # at toy sizes threads only wait for each other
    return gpu_check(device, options.output, options.small, options.budget_s)


def record_micro_batches(options: argparse.Namespace) -> int:
    """The first update's micro-batches of all processes, with each row's real lengths."""
    from pipeline.benchmarking.data_loading import Load

    lengths = (options.source_length, options.target_length)
    found = micro_batches.record([
        Load(options.data, options.batch_size, options.ranks, accumulation, lengths)
        for accumulation in options.accumulation
    ])  # fmt: skip
    options.json.parent.mkdir(parents=True, exist_ok=True)
    replace_json(options.json, found)
    for accumulation, shapes in micro_batches.read(options.json).items():
        source, target = micro_batches.fill(shapes)
        print(
            f"accumulation {accumulation}: {len(shapes)} micro-batches, "
            f"{len({(one.samples, one.source, one.target) for one in shapes})} shapes; real "
            f"{source:.1%} of source positions, {target:.1%} of target positions"
        )
    return 0


def compare_predictions(options: argparse.Namespace) -> int:
    """The table, printed, and written into a page where one is given."""
    earlier = gpu_predictions.read_record(gpu_predictions.EARLIER)
    measured = gpu_predictions.read_record(options.measured) if options.measured else None
    lines = [*gpu_predictions.table(earlier, measured)]
    print("\n".join(lines))
    if options.page:
        try:
            page = options.page.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--page {options.page} cannot be read: {error}") from error
        replace_text(options.page, gpu_predictions.refreshed(page, lines))
    return 0


def named_device(name: str) -> torch.device:
    """The device of `--device`. Raises ValueError where torch does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"--device {name}: no such device; give cuda, cuda:N or cpu") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: torch sees no GPU here; give --device cpu")
    return device
