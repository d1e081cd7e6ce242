"""Speed and memory of the model, and the check of a GPU."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse

import torch
import yaml

from pipeline.benchmarking.gpu import gpu_check
from pipeline.benchmarking.precision import faster, precision
from pipeline.files import replace_json


def time_precision(options: argparse.Namespace) -> int:
    """Which of bf16 and fp32 this CPU trains in faster; a ratio within one run."""
    try:
        seconds = precision(options.config, options.samples, options.vocab_size, options.threads)
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(
            f"{options.config} is no recipe to time ({type(error).__name__}: {error}); give "
            "one with model, data.source_length and data.target_length"
        ) from error
    print(
        f"one step: bf16 {seconds['bf16']:.3f} s, fp32 {seconds['fp32']:.3f} s "
        f"(fp32 / bf16 = {seconds['fp32'] / seconds['bf16']:.2f}): {faster(seconds)} is the faster"
    )
    if options.output:
        replace_json(options.output, {"seconds": seconds, "faster": faster(seconds)})
    return 0


def check_gpu(options: argparse.Namespace) -> int:
    """Correctness on the device, then timings."""
    device = _device(options.device)
    if device.type == "cpu" and options.small:
        torch.set_num_threads(1)  # at toy sizes threads only wait for each other
    return gpu_check(device, options.output, options.small, options.budget_s)


def build_parser() -> argparse.ArgumentParser:
    """The command line; each command names the function that runs it."""
    parser = argparse.ArgumentParser(prog="benchmark.py", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser(
        "precision", help="time a training step in bf16 and in fp32 on this CPU"
    )
    command.set_defaults(run=time_precision)
    command.add_argument("--config", type=Path, required=True, help="recipe that gives the sizes")
    command.add_argument("--samples", type=int, default=8, help="samples in the step (8)")
    command.add_argument("--vocab_size", type=int, default=8100, help="ids (8100)")
    command.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    command.add_argument("--output", type=Path, help="also write the figures to this JSON file")

    command = commands.add_parser("gpu", help="check a GPU: correctness, then timings")
    command.set_defaults(run=check_gpu)
    command.add_argument("--output", type=Path, required=True, help="folder for gpu_check.json")
    command.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (cuda)")
    command.add_argument("--small", action="store_true", help="toy sizes, for a CPU")
    command.add_argument(
        "--budget_s", type=float, default=440, help="seconds after which sections are skipped (440)"
    )
    return parser


def main(arguments: list[str]) -> int:
    """Exit status: 0; 1 when a check failed; 2 when an argument is wrong."""
    options = build_parser().parse_args(arguments)
    try:
        return options.run(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"--device {name}: no such device; give cuda, cuda:N or cpu") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: torch sees no GPU here; give --device cpu")
    return device


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
