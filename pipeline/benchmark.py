"""Benchmark the model, preprocessing, data loading and training; check a GPU."""

if not __package__:
    import _start  # noqa: F401
import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from pipeline.benchmarking import (
    gpu_command,
    launches_command,
    sequence_command,
    sweep,
    sweep_cases,
    systems,
)
from pipeline.benchmarking.gpu_command import named_device
from pipeline.benchmarking.precision import faster, precision
from pipeline.common.command_line import (
    Parser,
    above_zero,
    add_checks,
    count_from,
    exit_on_user_error,
    gibibytes,
)
from pipeline.common.files import replace_json
from pipeline.distributed.device import device_name


def time_precision(options: argparse.Namespace) -> int:
    """The faster of bf16 and fp32 for training on this CPU; a ratio within one run."""
    try:
        seconds = precision(options.config, options.samples, options.vocab_size, options.threads)
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(
            f"{options.config} is not a recipe to time ({type(error).__name__}: {error}); "
            "give one with model, data.source_length and data.target_length"
        ) from error
    print(
        f"one step: bf16 {seconds['bf16']:.3f} s, fp32 {seconds['fp32']:.3f} s "
        f"(fp32 / bf16 = {seconds['fp32'] / seconds['bf16']:.2f}): {faster(seconds)} is the faster"
    )
    if options.output:
        replace_json(options.output, {"seconds": seconds, "faster": faster(seconds)})
    return 0


def run_sweep(options: argparse.Namespace) -> int:
    """Measure the command's cases, print a row for each, write JSON and PNG."""
    sweep.run(
        options.command, options.cases(options), named_device(options.device), options.limit_s,
        options.memory_limit, options.output,
    )  # fmt: skip
    return 0


def compare_systems(options: argparse.Namespace) -> int:
    """Compare whole systems: memory, time, longest input, ratios, the paper's figure."""
    if options.dry_run or options.check_arguments:
        print("ready: valid arguments")
        return 0
    systems.run(options, named_device(options.device), options.memory_limit)
    return 0


def measure_case(options: argparse.Namespace) -> int:
    """One case of a sweep, in this process: its result as JSON."""
    print(json.dumps(sweep.measure_here(options.request)))
    return 0


def time_preprocessing(options: argparse.Namespace) -> int:
    """CPU time of each stage of pre-training's preprocessing, against SentencePiece alone."""
    from pipeline.benchmarking import preprocessing

    found = preprocessing.measure(options.input, options.tokenizer, options.documents)
    for line in preprocessing.as_text(found):
        print(line)
    return _save("preprocessing", found, options.output)


def time_loading(options: argparse.Namespace) -> int:
    """CPU time of a rank's loader; fill and balance of all ranks' batches; waiting for data."""
    from pipeline.benchmarking import data_loading, data_waiting

    throttle = {
        name: value
        for name in ("latency_ms", "bandwidth_mb_s")
        if (value := getattr(options, name)) is not None
    }
    if throttle and options.step_seconds is None:
        raise ValueError(
            f"--{next(iter(throttle))} throttles the loop of --step_seconds alone; give that too"
        )
    load = data_loading.Load(
        options.data, options.batch_size, options.ranks, options.accumulation,
        (options.source_length, options.target_length),
    )  # fmt: skip
    found = data_loading.measure(load, options.steps)
    lines = [*data_loading.as_text(found)]
    if options.step_seconds is not None:
        found["waiting"] = data_waiting.measure(
            load, options.steps, options.step_seconds, data_waiting.FileSystem(**throttle)
        )
        lines += data_waiting.as_text(found["waiting"])
    print("\n".join(lines))
    return _save("data", found, options.output)


def time_processes(options: argparse.Namespace) -> int:
    """Efficiency of data parallel training on CPUs; a ratio within one run."""
    from pipeline.benchmarking import processes

    found = processes.measure(
        options.data, options.config, options.batch_size, options.processes, options.steps,
        options.busy,
    )  # fmt: skip
    for line in processes.as_text(found):
        print(line)
    return _save("processes", found, options.output)


def count_scale(options: argparse.Namespace) -> int:
    """What many shards and many inputs cost each process: time, memory, files."""
    from pipeline.benchmarking import scale

    found = scale.measure(options.shards, options.inputs, options.documents)
    for line in scale.as_text(found):
        print(line)
    return _save("scale", found, options.output)


def build_parser() -> Parser:
    """The command line; each subcommand sets the function that runs it as `run`."""
    parser = Parser(prog="benchmark.py", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(
        dest="command", required=True,
        metavar="{precision,layer,encoder,decode,systems,preprocessing,data,scale,processes,"
        "launches,sequence,gpu,micro-batches,predictions}",
    )  # fmt: skip

    command = commands.add_parser(
        "precision", help="time a training step in bf16 and in fp32 on this CPU"
    )
    command.set_defaults(run=time_precision)
    command.add_argument("--config", type=Path, required=True, help="recipe that gives the sizes")
    command.add_argument("--samples", type=count_from(1), default=8, help="samples in the step (8)")
    command.add_argument("--vocab_size", type=count_from(1), default=8100, help="ids (8100)")
    command.add_argument("--threads", type=count_from(1), default=1, help="CPU threads (1)")
    command.add_argument("--output", type=Path, help="also write the figures to this JSON file")

    powers = [1 << exponent for exponent in range(10, 17)]
    command = _add_sweep(
        commands, "layer", sweep_cases.layer_cases, powers, "the state-space layer"
    )
    command.add_argument(
        "--reference_length", type=count_from(1), default=1024,
        help="longest input of the materialised and the row-by-row reference (1024)",
    )  # fmt: skip
    _add_modes(command)
    command = _add_sweep(
        commands, "encoder", sweep_cases.encoder_cases, powers, "the whole encoder"
    )
    command.add_argument(
        "--layers", type=count_from(1), help="encoder blocks (those of the recipe, or 12)"
    )
    _add_modes(command)
    lengths = [4096, 65536, 600_000]
    command = _add_sweep(commands, "decode", sweep_cases.decode_cases, lengths, "decoding")
    command.add_argument("--beams", type=_integers, default=[1, 4], help="beams, with commas (1,4)")
    command.add_argument("--tokens", type=count_from(1), default=32, help="tokens to decode (32)")
    command.add_argument(
        "--forms", type=_forms, default=["cached", "absorbed"],
        help="forms of cross-attention: cached, absorbed or cached,absorbed (both)",
    )  # fmt: skip

    command = commands.add_parser("systems", help="memory and time of LOCOST and other systems")
    command.set_defaults(run=compare_systems)
    _add_measured(command, "systems", [1024, 2048, 4096, 8192, 16384], limit_s=900)
    command.add_argument(
        "--systems", nargs="+", choices=systems.NAMES, default=systems.COMPARED, metavar="NAME",
        help=f"of {', '.join(systems.NAMES)}; eager: attention by plain products (all but "
        "longt5-local, none eager)",
    )  # fmt: skip
    command.add_argument("--tokens", type=count_from(1), default=512, help="target tokens (512)")
    command.add_argument(
        "--settings", type=systems.parse_sizes, default={}, metavar="JSON",
        help='sizes that differ from the base ones, by system: \'{"t5": {"d_ff": 2048}}\'',
    )  # fmt: skip
    command.add_argument(
        "--rounds", type=count_from(1), default=3, help="runs of each cell, in turn (3)"
    )
    command.add_argument(
        "--legacy_python", type=Path, default=systems.LEGACY,
        help="the Python that has LSG's packages (.venv-legacy/bin/python, by `make legacy`)",
    )  # fmt: skip
    command.add_argument(
        "--page", type=Path,
        help="write the tables of --output's record into this Markdown page; measure nothing",
    )  # fmt: skip
    _add_modes(command)
    add_checks(command)

    command = _add_corpus(commands, "preprocessing", "CPU time of preprocessing, stage by stage")
    command.set_defaults(run=time_preprocessing)
    command.add_argument("--tokenizer", required=True, help="SentencePiece model, or its folder")
    command.add_argument("--documents", type=count_from(1), help="use only the first N (all)")
    command = commands.add_parser(
        "data",
        help="speed of a rank's data loader; fill and balance of all ranks; waiting for data",
    )
    command.set_defaults(run=time_loading)
    command.add_argument("--data", type=Path, required=True, help="dataset folder")
    _add_counts(
        command, ("batch_size", 256, "samples per update"), ("ranks", 16, "processes"),
        ("accumulation", 2, "micro-batches per process and update"),
        ("steps", 50, "batches prepared"), ("source_length", 4096, "maximum source length"),
        ("target_length", 910, "maximum target length"),
    )  # fmt: skip
    for name, meaning in (
        ("step_seconds", "also run a loop of steps of this length; how long it waits for data"),
        ("latency_ms", "in that loop, ms that each request to the file system takes"),
        ("bandwidth_mb_s", "in that loop, MB/s that the file system delivers"),
    ):
        command.add_argument(f"--{name}", type=above_zero, help=meaning)
    _add_output(command, "data")

    command = commands.add_parser(
        "scale", help="memory, time and files of training on many shards, of a job over many inputs"
    )
    command.set_defaults(run=count_scale)
    _add_counts(
        command, ("shards", 100_000, "shards of the dataset"),
        ("inputs", 12_000, "files of the job"),
        ("documents", 3_000_000_000, "documents of the index of duplicates, which is not made"),
    )  # fmt: skip
    _add_output(command, "scale")

    command = commands.add_parser(
        "processes", help="efficiency of data parallel training against single processes, on CPUs"
    )
    command.set_defaults(run=time_processes)
    command.add_argument("--data", type=Path, required=True, help="dataset folder")
    command.add_argument("--config", type=Path, required=True, help="recipe to train")
    _add_counts(
        command, ("batch_size", 32, "samples per update"),
        ("processes", 2, "processes that train together"),
        ("steps", 50, "steps timed, after ten of warm-up"),
    )  # fmt: skip
    command.add_argument(
        "--busy", type=count_from(0), default=0, help="busy programs that compete for the cores (0)"
    )
    _add_output(command, "processes")

    launches_command.add(commands)
    sequence_command.add(commands)

    command = commands.add_parser("measure")  # one case, for `run_sweep` alone
    command.set_defaults(run=measure_case)
    command.add_argument("request")

    gpu_command.add(commands)
    return parser


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 when a check failed; 2 when an argument is wrong."""
    options = build_parser().parse_args(arguments)
    return options.run(options)


def _add_sweep(commands: Any, name: str, cases: Any, lengths: list[int], subject: str) -> Parser:
    command = commands.add_parser(name, help=f"time, CPU time and peak memory of {subject}")
    command.set_defaults(run=run_sweep, cases=cases)
    _add_measured(command, name, lengths)
    command.add_argument("--config", type=Path, help="recipe that gives the sizes (base model)")
    return command


def _add_measured(command: Parser, name: str, lengths: list[int], limit_s: int = 600) -> None:
    """Options of every case, its limits, and the output folder."""
    command.add_argument(
        "--lengths", type=_integers, nargs="+", action=_Joined, default=lengths,
        help=f"tokens ({' '.join(map(str, lengths))})",
    )  # fmt: skip
    command.add_argument("--batch", type=count_from(1), default=1, help="batch size (1)")
    command.add_argument(
        "--dtype",
        choices=["fp32", "bf16"],
        default="fp32",
        help="precision; bf16 is autocast (fp32)",
    )
    command.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    command.add_argument("--threads", type=count_from(1), default=1, help="CPU threads (1)")
    command.add_argument(
        "--limit_s",
        type=above_zero,
        default=limit_s,
        help=f"time limit of one measurement in seconds ({limit_s})",
    )
    command.add_argument(
        "--memory_limit",
        type=gibibytes,
        help="memory limit of one measurement in GiB (the available memory)",
    )
    command.add_argument(
        "--output", type=Path, default=Path("runs/benchmarks"),
        help=f"folder for {name}.json and {name}.png (runs/benchmarks)",
    )  # fmt: skip


class _Joined(argparse.Action):
    """Joins the lists of several words into one."""

    def __call__(self, _: Any, namespace: argparse.Namespace, values: Any, __: Any = None) -> None:
        setattr(namespace, self.dest, [value for part in values for value in part])


def _add_modes(command: Parser) -> None:
    command.add_argument(
        "--mode", choices=["inference", "training", "both"], default="both",
        help="forward without gradients, forward and backward, or both (both)",
    )  # fmt: skip


def _add_corpus(commands: Any, name: str, purpose: str) -> Parser:
    command = commands.add_parser(name, help=purpose)
    command.add_argument(
        "--input", nargs="+", required=True, metavar="GLOB", help="files in C4's format"
    )
    _add_output(command, name)
    return command


def _add_counts(command: Parser, *options: tuple[str, int, str]) -> None:
    """Options that are numbers from 1: name, default, meaning."""
    for name, value, meaning in options:
        command.add_argument(
            f"--{name}", type=count_from(1), default=value, help=f"{meaning} ({value:,})"
        )


def _add_output(command: Parser, name: str) -> None:
    command.add_argument(
        "--output", type=Path, default=Path("runs/benchmarks"),
        help=f"folder for {name}.json (runs/benchmarks)",
    )  # fmt: skip


def _save(command: str, found: dict[str, Any], output: Path) -> int:
    """Write a command's results and the device to COMMAND.json."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{command}.json"
    replace_json(path, {"command": command, "device": device_name(torch.device("cpu")), **found})
    print(path)
    return 0


def _integers(text: str) -> list[int]:
    return [count_from(1)(part) for part in text.split(",")]


def _forms(text: str) -> list[str]:
    forms = text.split(",")
    if not {"cached", "absorbed"}.issuperset(forms):
        raise argparse.ArgumentTypeError(f"{text!r}: give cached, absorbed or cached,absorbed")
    return forms


if __name__ == "__main__":
    sys.exit(main())
