"""Estimate memory, time and energy of a training run before it is queued."""

if not __package__:
    import _start  # noqa: F401
import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.common.command_line import Parser, above_zero, count_from, exit_on_user_error
from pipeline.common.files import replace_json
from pipeline.common.gpus import ACHIEVED, GPUS, LAUNCH_SECONDS, LINK, NODE_LINK
from pipeline.common.units import GIB
from pipeline.config import DEFAULT_RECIPE, RunConfig, parse
from pipeline.estimation.estimate import (
    Estimate,
    UpdateEstimate,
    estimate,
    hours,
    kilograms_co2,
    kilowatt_hours,
    step_seconds,
    with_accumulation,
)
from pipeline.estimation.lengths import C4, C4_DOCUMENTS, C4_SAMPLES, Lengths
from pipeline.estimation.memory import highest, host_bytes, peak_bytes
from pipeline.estimation.step_time import Assumptions
from pipeline.model import LocostConfig
from pipeline.shards import Dataset
from pipeline.training.deepspeed_config import deepspeed_settings
from pipeline.training.schedule import steps_of

ASSUMED = ("launch_us", "achieved", "link_gb", "node_link_gb")
UNREAD = "(not read)"  # stands for the folders that the settings require


def build_parser() -> Parser:
    """The command line; unknown options are settings of train.py."""
    parser = Parser(
        prog="estimate.py",
        description="Print what a training run will need: parameters, operations, memory per GPU "
        "by part, time, energy and CO2; with batches by length, as the trainer makes them, and for "
        "comparison with all samples padded to the longest. Settings of train.py may follow "
        "(--train.accumulation 4 --model.d_model 512).",
    )
    parser.add_argument(
        "--config", action="append", metavar="RECIPE",
        help="recipe; later ones override earlier ones (pretrain_c4)",
    )  # fmt: skip
    parser.add_argument(
        "--deepspeed_config", default="ds_configs/zero1.json", metavar="JSON",
        help="DeepSpeed configuration (ds_configs/zero1.json)",
    )  # fmt: skip
    parser.add_argument("--gpus", type=count_from(1), default=16, help="number of GPUs (16)")
    parser.add_argument(
        "--gpu", default="h100", metavar="NAME", help=f"model of GPU: {', '.join(GPUS)} (h100)"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="dataset folder whose lengths are used (default: those of C4)"
    )
    time = parser.add_mutually_exclusive_group()
    time.add_argument(
        "--mfu", type=above_zero,
        help="share of the GPUs' dense 16-bit rate reached, instead of counting what a step does",
    )  # fmt: skip
    time.add_argument("--step_seconds", type=above_zero, help="measured seconds per step, instead")
    time.add_argument("--hours", type=above_zero, help="measured hours of the run, instead")
    counted = parser.add_argument_group("what a count of launches, bytes and operations assumes")
    counted.add_argument(
        "--launch_us", type=above_zero, default=1e6 * LAUNCH_SECONDS, metavar="US",
        help="microseconds of the host for a kernel "
        f"({1e6 * LAUNCH_SECONDS:g}, measured beside an H100)",
    )  # fmt: skip
    counted.add_argument(
        "--achieved", type=above_zero, default=ACHIEVED, metavar="SHARE",
        help="share of the GPU's bandwidth and rates reached, operator by operator "
        f"({ACHIEVED}, measured on an H100)",
    )  # fmt: skip
    counted.add_argument(
        "--link_gb", type=above_zero, default=LINK / 1e9, metavar="GB",
        help=f"GB/s that each GPU exchanges with others ({LINK / 1e9:g}: 200 Gbit/s)",
    )  # fmt: skip
    counted.add_argument(
        "--node_link_gb", type=above_zero, default=NODE_LINK / 1e9, metavar="GB",
        help="GB/s that each GPU exchanges with those it shares documents with "
        f"({NODE_LINK / 1e9:g}: NVLink)",
    )  # fmt: skip
    watts = ", ".join(f"{key} {gpu.watts:g}" for key, gpu in GPUS.items())
    parser.add_argument("--watts", type=above_zero, help=f"mean power draw of a GPU ({watts})")
    parser.add_argument(
        "--carbon", type=above_zero, default=58,
        help="g of CO2 per kWh (58, the paper's value for France)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="JSON", help="also write the figures to this file"
    )
    return parser


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 2 when an argument or a file is wrong."""
    options, settings = build_parser().parse_known_args(arguments)
    figures = work_out(options, settings)
    print("\n".join(as_text(figures)))
    if options.output:
        replace_json(options.output, figures)
    return 0


def work_out(options: argparse.Namespace, settings: list[str]) -> dict[str, Any]:
    """All figures, as written to JSON. Raises ValueError for what cannot be estimated."""
    if options.gpu not in GPUS:
        raise ValueError(f"--gpu {options.gpu} is unknown: give {', '.join(GPUS)}")
    config = run_config(options, settings)
    dataset = Dataset(options.data) if options.data else None
    if dataset is None and config.train.max_epochs:
        raise ValueError(
            f"train.max_epochs is {config.train.max_epochs}: the number of steps depends on the "
            "dataset; give --data DIR, or --train.max_epochs 0 --train.max_steps N"
        )
    samples = len(dataset) if dataset else C4_SAMPLES
    lengths = Lengths.of(dataset.manifest) if dataset else C4
    vocab_size = dataset.manifest["tokenizer"]["vocab_size"] if dataset else LocostConfig.vocab_size
    gpu, given = GPUS[options.gpu], options.mfu or options.hours or options.step_seconds
    chosen = config.train.accumulation == 0
    if chosen:
        memory = gpu.memory_gib * GIB
        config = with_accumulation(config, options.gpus, lengths, vocab_size, memory)
    links = (options.link_gb * 1e9, options.node_link_gb * 1e9)
    assumed = Assumptions(gpu, options.launch_us / 1e6, options.achieved, *links)
    found = estimate(
        config,
        deepspeed_settings(config, options.gpus),
        options.gpus,
        steps_of(config.train, samples),
        lengths,
        vocab_size,
        None if given else assumed,
    )
    mfu = options.mfu
    if options.hours or options.step_seconds:
        measured = options.step_seconds or options.hours * 3600 / found.steps
        mfu = found.real.flops / (measured * options.gpus * gpu.flops)
    seen = found.steps * config.train.batch_size
    return {
        "recipes": [Path(name).stem for name in options.config or [DEFAULT_RECIPE]],
        "deepspeed_config": Path(options.deepspeed_config).stem,
        "gpu": gpu.name,
        "gpus": options.gpus,
        "gpu_memory_gib": gpu.memory_gib,
        "precision": config.train.precision,
        "parameters": found.parameters.total,
        "steps": found.steps,
        "batch_size": config.train.batch_size,
        "accumulation": config.train.accumulation,
        "sequence_parallel_size": config.train.sequence_parallel_size,
        "accumulation_chosen": chosen,
        "samples": seen,
        "dataset": options.data or "C4",
        "dataset_samples": samples,
        "epochs": seen / samples,
        "time": "at this MFU" if options.mfu else "measured" if given else "counted",
        "assumed": None if given else {name: getattr(options, name) for name in ASSUMED},
        "watts": options.watts or gpu.watts,
        "carbon_g_per_kwh": options.carbon,
        "host_gib": host_bytes(found.parameters, found.sharding) / GIB,
        "columns": [column(work, found, options, mfu) for work in (found.real, found.padded)],
    }


def run_config(options: argparse.Namespace, settings: list[str]) -> RunConfig:
    """The configuration of the estimated run."""
    recipes = [
        word for name in options.config or [DEFAULT_RECIPE] for word in ("--config", str(name))
    ]
    folders = ["--data.train", UNREAD, "--data.validation", UNREAD]
    config, _ = parse(
        [*recipes, *folders, *settings, "--deepspeed_config", options.deepspeed_config]
    )
    return config


def column(
    work: UpdateEstimate, found: Estimate, options: argparse.Namespace, mfu: float | None
) -> dict[str, Any]:
    """The figures of one way of padding; `mfu`: where the time was not counted."""
    gpu, counted = GPUS[options.gpu], work.time
    if counted:
        mfu = work.flops / (counted.total * options.gpus * gpu.flops)
    assert mfu is not None
    seconds = step_seconds(work.flops, options.gpus, gpu, mfu)
    total = hours(found.steps, seconds)
    energy = kilowatt_hours(total, options.gpus, options.watts or gpu.watts)
    return {
        "padding": work.name,
        "source_tokens": work.source_tokens,
        "target_tokens": work.target_tokens,
        "source_fill": work.source_fill,
        "tflop": work.flops / 1e12,
        "mfu": mfu,
        "step_seconds": seconds,
        "step_parts": asdict(counted) if counted else None,
        "hours": total,
        "kwh": energy,
        "kg_co2": kilograms_co2(energy, options.carbon),
        "sequence_exchange_gb": work.sequence_bytes / 1e9,
        "micro_batch": [work.largest.samples, work.largest.source, work.largest.target],
        "moment": highest(work.memory),
        "peak_gib": peak_bytes(work.memory) / GIB,
        "memory_gib": {
            moment: {part: size / GIB for part, size in parts.items()}
            for moment, parts in work.memory.items()
        },
    }


def as_text(figures: dict[str, Any]) -> Iterator[str]:
    """The lines of the report."""
    recipes, columns = " + ".join(figures["recipes"]), figures["columns"]
    shared = figures["sequence_parallel_size"] > 1
    yield (
        f"{recipes} with {figures['deepspeed_config']} on {figures['gpus']} x {figures['gpu']}, "
        f"{figures['precision']}"
    )
    yield f"parameters  {figures['parameters']:,}"
    yield (
        f"steps       {figures['steps']:,} of {figures['batch_size']} samples: {groups(figures)} x "
        f"{figures['accumulation']} micro-batches"
        + (", the fewest that fit by this estimate" if figures["accumulation_chosen"] else "")
    )
    name = figures["dataset"]
    of = f"{figures['dataset_samples']:,} samples of {name}"
    if name == "C4":
        of = f"C4's {C4_SAMPLES:,} eligible documents ({C4_DOCUMENTS:,} rows)"
    yield f"samples     {figures['samples']:,} = {figures['epochs']:,.2f} epochs of {of}"
    if figures["gpu"].startswith("V100") and figures["precision"] == "bf16":
        yield "note        a V100 has no bf16: time is at its fp16 rate"

    def row(label: str, form: str, key: str) -> str:
        return line(label, (form.format(one[key]) for one in columns))

    yield ""
    yield line("", (one["padding"] for one in columns))
    yield row("source tokens a step", "{:,.0f}", "source_tokens")
    yield row("target tokens a step", "{:,.0f}", "target_tokens")
    yield row("real source positions", "{:.1%}", "source_fill")
    yield row("TFLOP a step", "{:,.0f}", "tflop")
    if shared:
        yield row("sequence exchange a GPU, GB a step", "{:,.2f}", "sequence_exchange_gb")
    if figures["assumed"]:
        parts = ("micro_batches", "optimizer", "exchange", "sequence_exchange")
        for part in parts if shared else parts[:-1]:
            seconds = (f"{one['step_parts'][part]:.3f}" for one in columns)
            yield line(f"  {part.replace('_', '-')}, s", seconds)
        shares = (one["step_parts"]["host_bound"] for one in columns)
        yield line("  micro-batches that wait for the host", (f"{share:.0%}" for share in shares))
    yield row(f"step, s ({figures['time']})", "{:.3f}", "step_seconds")
    yield row("MFU", "{:.1%}", "mfu")
    rates = (figures["batch_size"] / figures["gpus"] / one["step_seconds"] for one in columns)
    yield line("samples/s a GPU", (f"{rate:.2f}" for rate in rates))
    yield line("time", (f"{one['hours']:,.1f} h = {one['hours'] / 24:,.1f} d" for one in columns))
    yield row(f"energy at {figures['watts']:g} W a GPU, kWh", "{:,.1f}", "kwh")
    yield row(f"CO2 at {figures['carbon_g_per_kwh']:g} g/kWh, kg", "{:,.1f}", "kg_co2")
    yield ""
    yield line("memory per GPU, GiB", (f"peak at: {one['moment']}" for one in columns))
    shapes = (one["micro_batch"] for one in columns)
    yield line("largest micro-batch", (f"{b} x ({s:,} + {t:,})" for b, s, t in shapes))
    for part in dict.fromkeys(part for one in columns for part in most(one)):
        cells = [cell(one, part) for one in columns]
        if any(text != "0.00" for text in cells):
            yield line(f"  {part}", cells)
    yield row("  total", "{:.2f}", "peak_gib")
    room = figures["gpu_memory_gib"]
    verdicts = ("fits" if one["peak_gib"] < room else "does not fit" for one in columns)
    yield line(f"  of {room:g}", verdicts)
    if figures["host_gib"]:
        yield f"host memory per GPU, GiB  {figures['host_gib']:.2f}"
    if assumed := figures["assumed"]:
        yield (
            f"Time: {assumed['launch_us']:g} us of the host a launch, {assumed['achieved']:.0%} of "
            f"the GPU's rates, {assumed['link_gb']:g} GB/s between GPUs"
            + (f" ({assumed['node_link_gb']:g} inside a group)" if shared else "")
            + ", not overlapped; no wait for data."
        )
    yield "In parentheses: held at another moment, not in the total."
    yield "Not counted: the CUDA context and NCCL's buffers (1 to 2 GiB), fragmentation."


def groups(figures: dict[str, Any]) -> str:
    """What gets micro-batches of its own: each GPU, or each group of GPUs that share documents."""
    gpus, size = figures["gpus"], figures["sequence_parallel_size"]
    return f"{gpus} GPUs" if size == 1 else f"{gpus // size} x {size} GPUs that share documents"


def most(column: dict[str, Any]) -> dict[str, float]:
    """The maximum of each part over all moments, GiB."""
    parts: dict[str, float] = {}
    for moment in column["memory_gib"].values():
        for part, size in moment.items():
            parts[part] = max(size, parts.get(part, 0.0))
    return parts


def cell(column: dict[str, Any], part: str) -> str:
    """A part's GiB at the peak; in parentheses its maximum where it is not held then."""
    size = column["memory_gib"][column["moment"]].get(part, 0.0)
    return f"{size:.2f}" if size else f"({most(column)[part]:.2f})".replace("(0.00)", "0.00")


def line(label: str, cells: Any) -> str:
    """A row of the table."""
    return f"{label:36}" + "".join(f"{cell:>26}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
