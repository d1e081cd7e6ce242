"""Speed and memory of the model, of preprocessing and of loading, and the check of a GPU."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import json
from typing import Any

import torch
import yaml

from pipeline.baselines.systems import SYSTEMS
from pipeline.benchmarking import plans, sweep, systems
from pipeline.benchmarking.gpu import gpu_check
from pipeline.benchmarking.meter import GIB, device_name
from pipeline.benchmarking.precision import faster, precision
from pipeline.command_line import Parser
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


def run_sweep(options: argparse.Namespace) -> int:
    """Measure the command's cases, print them as they come, save JSON and PNG."""
    memory = None if options.memory_limit is None else int(options.memory_limit * GIB)
    sweep.run(
        options.command, options.cases(options), _device(options.device), options.limit_s, memory,
        options.output,
    )  # fmt: skip
    return 0


def compare_systems(options: argparse.Namespace) -> int:
    """Whole systems side by side: memory, time, the longest input, ratios, the paper's figure."""
    memory = None if options.memory_limit is None else int(options.memory_limit * GIB)
    systems.run(options, _device(options.device), memory)
    return 0


def measure_case(options: argparse.Namespace) -> int:
    """One case of a sweep, in this process: its result as JSON."""
    print(json.dumps(sweep.measure_here(options.request)))
    return 0


def check_gpu(options: argparse.Namespace) -> int:
    """Correctness on the device, then timings."""
    device = _device(options.device)
    if device.type == "cpu" and options.small:
        torch.set_num_threads(1)  # at toy sizes threads only wait for each other
    return gpu_check(device, options.output, options.small, options.budget_s)


def time_preprocessing(options: argparse.Namespace) -> int:
    """CPU time of each stage of pre-training's preprocessing, against SentencePiece alone."""
    from pipeline.benchmarking import preprocessing

    found = preprocessing.measure(options.input, options.tokenizer, options.documents)
    for line in preprocessing.as_text(found):
        print(line)
    return _save("preprocessing", found, options.output)


def compare_splitters(options: argparse.Namespace) -> int:
    """Speed and quality of the installed sentence splitters, ours first."""
    from pipeline.benchmarking import sentences

    return _save("sentences", sentences.run(options.input, options.books), options.output)


def time_loading(options: argparse.Namespace) -> int:
    """CPU time of a rank's batches, and how full and even all ranks' are."""
    from pipeline.benchmarking import data

    found = data.measure(
        options.data, options.batch_size, options.ranks, options.accumulation, options.steps,
        (options.source_length, options.target_length),
    )  # fmt: skip
    for line in data.as_text(found):
        print(line)
    return _save("data", found, options.output)


def time_processes(options: argparse.Namespace) -> int:
    """What processes that train together lose to each other; a ratio within one run."""
    from pipeline.benchmarking import processes

    found = processes.measure(
        options.data, options.config, options.batch_size, options.processes, options.steps,
        options.busy,
    )  # fmt: skip
    for line in processes.as_text(found):
        print(line)
    return _save("processes", found, options.output)


def build_parser() -> Parser:
    """The command line; each command names the function that runs it."""
    parser = Parser(prog="benchmark.py", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(
        dest="command", required=True,
        metavar="{precision,layer,encoder,decode,systems,preprocessing,sentences,data,processes,gpu}",
    )  # fmt: skip

    command = commands.add_parser(
        "precision", help="time a training step in bf16 and in fp32 on this CPU"
    )
    command.set_defaults(run=time_precision)
    command.add_argument("--config", type=Path, required=True, help="recipe that gives the sizes")
    command.add_argument("--samples", type=int, default=8, help="samples in the step (8)")
    command.add_argument("--vocab_size", type=int, default=8100, help="ids (8100)")
    command.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    command.add_argument("--output", type=Path, help="also write the figures to this JSON file")

    powers = [1 << exponent for exponent in range(10, 17)]
    command = _add_sweep(commands, "layer", plans.layer_cases, powers, "the state-space layer")
    command.add_argument(
        "--reference_length", type=_positive, default=1024,
        help="longest input of the materialised and the row-by-row reference (1024)",
    )  # fmt: skip
    _add_modes(command)
    command = _add_sweep(commands, "encoder", plans.encoder_cases, powers, "the whole encoder")
    command.add_argument(
        "--layers", type=_positive, help="encoder blocks (those of the recipe, or 12)"
    )
    _add_modes(command)
    lengths = [4096, 65536, 600_000]
    command = _add_sweep(commands, "decode", plans.decode_cases, lengths, "decoding")
    command.add_argument("--beams", type=_integers, default=[1, 4], help="beams, with commas (1,4)")
    command.add_argument("--tokens", type=_positive, default=32, help="tokens to decode (32)")
    command.add_argument(
        "--forms", type=_forms, default=["cached", "absorbed"],
        help="of cross-attention: cached, absorbed or both with a comma (both)",
    )  # fmt: skip

    command = commands.add_parser("systems", help="memory and time of LOCOST beside other systems")
    command.set_defaults(run=compare_systems)
    _add_measured(command, "systems", [1024, 4096, 16384])
    names = [systems.OURS, *SYSTEMS]
    here = [systems.OURS, *(name for name, system in SYSTEMS.items() if not system.legacy)]
    command.add_argument(
        "--systems", nargs="+", choices=names, default=here, metavar="NAME",
        help=f"of {', '.join(names)} (all but lsg, for which run .venv-legacy/bin/python)",
    )  # fmt: skip
    command.add_argument("--tokens", type=_positive, default=512, help="target tokens (512)")
    command.add_argument(
        "--settings", type=_settings, default={}, metavar="JSON",
        help='sizes other than the base ones, by system: \'{"t5": {"d_ff": 2048}}\'',
    )  # fmt: skip
    _add_modes(command)

    command = _add_corpus(commands, "preprocessing", "CPU time of preprocessing, stage by stage")
    command.set_defaults(run=time_preprocessing)
    command.add_argument("--tokenizer", required=True, help="SentencePiece model, or its folder")
    command.add_argument("--documents", type=_positive, help="how many, from the first (all)")
    command = _add_corpus(commands, "sentences", "compare the sentence splitters installed here")
    command.set_defaults(run=compare_splitters)
    command.add_argument(
        "--books",
        nargs="+",
        default=[],
        metavar="GLOB",
        help="plain texts, for the longest sentence",
    )

    command = commands.add_parser("data", help="speed of a rank's loader; fill and load of all")
    command.set_defaults(run=time_loading)
    command.add_argument("--data", type=Path, required=True, help="dataset folder")
    for name, value, meaning in (
        ("batch_size", 256, "samples an update"), ("ranks", 16, "processes"),
        ("accumulation", 2, "micro-batches a process runs for one update"),
        ("steps", 50, "batches prepared"), ("source_length", 4096, "longest source"),
        ("target_length", 910, "longest target"),
    ):  # fmt: skip
        command.add_argument(
            f"--{name}", type=_positive, default=value, help=f"{meaning} ({value})"
        )
    _add_output(command, "data")

    command = commands.add_parser(
        "processes", help="trainings of several processes beside as many single ones, on CPUs"
    )
    command.set_defaults(run=time_processes)
    command.add_argument("--data", type=Path, required=True, help="dataset folder")
    command.add_argument("--config", type=Path, required=True, help="recipe that is trained")
    for name, value, meaning in (
        ("batch_size", 32, "samples an update"), ("processes", 2, "that train together"),
        ("steps", 50, "steps timed, after ten others"),
    ):  # fmt: skip
        command.add_argument(
            f"--{name}", type=_positive, default=value, help=f"{meaning} ({value})"
        )
    command.add_argument("--busy", type=int, default=0, help="other programs that compute (0)")
    _add_output(command, "processes")

    command = commands.add_parser("measure")  # one case, for `run_sweep` alone
    command.set_defaults(run=measure_case)
    command.add_argument("request")

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
    try:
        options = build_parser().parse_args(arguments)
        return options.run(options)
    except (OSError, ValueError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _add_sweep(commands: Any, name: str, cases: Any, lengths: list[int], subject: str) -> Parser:
    command = commands.add_parser(name, help=f"time, CPU time and peak memory of {subject}")
    command.set_defaults(run=run_sweep, cases=cases)
    _add_measured(command, name, lengths)
    command.add_argument("--config", type=Path, help="recipe that gives the sizes (base model)")
    return command


def _add_measured(command: Parser, name: str, lengths: list[int]) -> None:
    """What every case takes, how long it may, and where the figures go."""
    command.add_argument(
        "--lengths", type=_integers, nargs="+", action=_Joined, default=lengths,
        help=f"tokens ({' '.join(map(str, lengths))})",
    )  # fmt: skip
    command.add_argument("--batch", type=_positive, default=1, help="inputs at once (1)")
    command.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="(fp32)")
    command.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    command.add_argument("--threads", type=_positive, default=1, help="CPU threads (1)")
    command.add_argument(
        "--limit_s", type=float, default=600, help="seconds that one measurement may take (600)"
    )
    command.add_argument(
        "--memory_limit", type=float, help="GiB that one may take (what is available)"
    )
    command.add_argument(
        "--output", type=Path, default=Path("runs/benchmarks"),
        help=f"folder for {name}.json and {name}.png (runs/benchmarks)",
    )  # fmt: skip


class _Joined(argparse.Action):
    """Lists, as one."""

    def __call__(self, _: Any, namespace: argparse.Namespace, values: Any, __: Any = None) -> None:
        setattr(namespace, self.dest, [value for part in values for value in part])


def _add_modes(command: Parser) -> None:
    command.add_argument(
        "--mode", choices=["inference", "training", "both"], default="both",
        help="forward without gradients, forward and backward (both)",
    )  # fmt: skip


def _add_corpus(commands: Any, name: str, purpose: str) -> Parser:
    command = commands.add_parser(name, help=purpose)
    command.add_argument(
        "--input", nargs="+", required=True, metavar="GLOB", help="files in C4's format"
    )
    _add_output(command, name)
    return command


def _add_output(command: Parser, name: str) -> None:
    command.add_argument(
        "--output", type=Path, default=Path("runs/benchmarks"),
        help=f"folder for {name}.json (runs/benchmarks)",
    )  # fmt: skip


def _save(command: str, found: dict[str, Any], output: Path) -> int:
    """Write what a command found, and on what, to COMMAND.json."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{command}.json"
    replace_json(path, {"command": command, "device": device_name(torch.device("cpu")), **found})
    print(path)
    return 0


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return value


def _integers(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _settings(text: str) -> dict[str, dict[str, Any]]:
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    names = [systems.OURS, *SYSTEMS]
    if not isinstance(settings, dict) or not settings.keys() <= set(names):
        raise argparse.ArgumentTypeError(f"{text!r}: give settings by system, {', '.join(names)}")
    return settings


def _forms(text: str) -> list[str]:
    forms = text.split(",")
    if not {"cached", "absorbed"}.issuperset(forms):
        raise argparse.ArgumentTypeError(f"{text!r}: give cached, absorbed or cached,absorbed")
    return forms


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
