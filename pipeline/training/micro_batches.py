"""A rank's micro-batches, and how many of them an update has: as few as memory allows."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.baselines.registry import Model
from pipeline.common.units import GIB
from pipeline.config import RunConfig, TrainConfig
from pipeline.data.batches import Batches
from pipeline.data.collate import MicroBatch
from pipeline.data.planning import accumulations
from pipeline.distributed.device import Peak, device_name, is_out_of_memory, within_memory
from pipeline.distributed.launcher_environment import host_name
from pipeline.distributed.world import RunFailed, World
from pipeline.model import Locost
from pipeline.model.memory import available_memory
from pipeline.model.sequence import Unconnected
from pipeline.training.choices import FILE, record, recorded
from pipeline.training.deepspeed_config import deepspeed_settings
from pipeline.training.preflight import Shape, length_limits, made_up, survey
from pipeline.training.prepare import PreparedRun
from pipeline.training.sharding import MARGIN, Sharding

ACCUMULATION = "accumulation"


def batches_of(config: RunConfig, prepared: PreparedRun, world: World) -> Batches:
    """This rank's part of the global batches."""
    limits = length_limits(config.data, prepared.model)
    datasets, order = prepared.train.datasets, prepared.order
    accumulation = config.train.accumulation
    return Batches(datasets, order, world.data_rank, world.data_size, accumulation, *limits)


def with_accumulation(
    config: RunConfig, prepared: PreparedRun, world: World
) -> tuple[RunConfig, PreparedRun]:
    """The run with a number for `train.accumulation` 0; a collective.

    The smallest of 1, 2, 4, ... whose largest micro-batches fit. RUN/choices.json keeps it, for the
    same conditions: where its rounding changed, a resumed run would not be the same.
    Raises RunFailed on all ranks where none fits, or the file cannot be written.
    """
    if config.train.accumulation:
        return config, prepared
    run, where = Path(config.output), conditions(config, prepared, world)
    where, kept = world.broadcast((where, recorded(run, ACCUMULATION)))
    number, before = kept.get("chosen"), kept.get("for")
    if isinstance(before, dict):
        before = {"sequence_parallel_size": 1, **before}  # older records lack it
    if before == where and number in accumulations(config.train.batch_size, world.data_size):
        line = f"accumulation {number}, as chosen before ({run / FILE})"
    else:
        number, line = choose(config, prepared, world)
        keep = partial(record, run, ACCUMULATION, number, where, measured=line)
        world.on_all(keep if world.is_main else lambda: None, OSError, failure=RunFailed)
        if isinstance(before, dict):
            line = f"{differences(before, where)}\n{line}"
    if world.is_main:
        print(line, flush=True)
    config = replace(config, train=replace(config.train, accumulation=number))
    return config, replace(prepared, settings=deepspeed_settings(config, world.size))


def conditions(config: RunConfig, prepared: PreparedRun, world: World) -> dict[str, Any]:
    """What memory depends on; JSON types."""
    train, device = config.train, world.device
    on_card = device.type == "cuda"
    settings = ("precision", "recompute_activations", "attention", "kernel_build", "fft", "blocks")
    total = torch.cuda.get_device_properties(device).total_memory / GIB if on_card else None
    return {
        "device": device_name(device),
        "memory_gib": train.memory_limit_gib or (total and round(total, 1)),
        "processes": world.size,
        "sequence_parallel_size": world.sequence_size,
        "zero_stage": prepared.settings["zero_optimization"]["stage"],
        "batch_size": train.batch_size,
        "lengths": list(length_limits(config.data, prepared.model)),
        "parameters": sum(parameter.numel() for parameter in prepared.model.parameters()),
        "dropout": prepared.model.config.dropout,
        **{name: getattr(train, name) for name in settings},
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """One line on why what was recorded does not hold."""
    changed = [
        f"{name} is {value}, was {before.get(name)}"
        for name, value in now.items()
        if before.get(name) != value
    ]
    return f"accumulation is chosen anew: {', '.join(changed) or 'the record is damaged'}"


def choose(config: RunConfig, prepared: PreparedRun, world: World) -> tuple[int, str]:
    """The smallest accumulation that fits on every rank, and a line that says why; a collective."""
    free = min(world.gather(free_bytes(world)))
    room = int(config.train.memory_limit_gib * GIB) or free
    of = f"{room / GIB:.3f} GiB a process, less {MARGIN:.0%}"
    done = prepared.checkpoints.steps_done
    steps = range(done, max(config.train.max_steps, done + 1))
    tried = []
    for number in accumulations(config.train.batch_size, world.data_size):
        cut = replace(config, train=replace(config.train, accumulation=number))
        shapes = survey(batches_of(cut, prepared, world), steps, world).longest()
        peak = max(world.gather(peak_bytes(cut, prepared, world, shapes, free)))
        needed = "too much" if math.isinf(peak) else f"{peak / GIB:.3f} GiB"
        tried.append(f"{number} needs {needed}")
        if peak <= (1 - MARGIN) * room:
            longest = " and ".join(f"{n} x ({s:,} + {t:,})" for n, s, t in sorted(shapes))
            return number, f"accumulation {number}, micro-batches up to {longest}: of {of}, " + (
                ", ".join(tried)
            )
    raise RunFailed(
        f"train.accumulation is 0, and no number of micro-batches fits: of {of}, "
        f"{', '.join(tried)}; take more processes, set --train.recompute_activations true, or cut "
        "the lengths (--data.source_length)"
    )


def free_bytes(world: World) -> int:
    """Bytes that this process may still take, on a CPU its share of the node's; a collective."""
    hosts, free = world.gather(host_name()), available_memory(world.device)
    return free if world.device.type == "cuda" else free // hosts.count(host_name())


def peak_bytes(
    config: RunConfig, prepared: PreparedRun, world: World, shapes: Iterable[Shape], free: int
) -> float:
    """Bytes that an update takes beyond what this process holds; inf: more than are `free`.

    Measured in a forward and backward of micro-batches of these shapes, which leaves no trace.
    No collective is in it: a rank without memory keeps none waiting. So DeepSpeed's own part is
    added from its sizes, and the gradients are whole, as at ZeRO stage 1.
    """
    model, device = prepared.model, world.device
    on_card = device.type == "cuda"
    limit = nullcontext() if on_card else within_memory(free)
    memory, peak = Peak(device), math.inf
    with torch.random.fork_rng([device] if on_card else []), limit, unconnected(model):
        try:
            for shape in sorted(shapes):
                micro_batch = made_up(shape, model.config.vocab_size)
                _forward_and_backward(model, config.train, micro_batch, device)
            peak = memory.bytes()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
    model.zero_grad(set_to_none=True)
    model.to("cpu")  # DeepSpeed's engine takes it from there
    if on_card:
        torch.cuda.empty_cache()
    sharding = Sharding.of(prepared.settings, world.size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return peak + sharding.optimizer(parameters, on_card) + sharding.buckets(parameters, on_card)


@contextmanager
def unconnected(model: Model) -> Iterator[None]:
    """The model with its own part of a shared source alone, without the processes that it waits
    for: memory is the same."""
    if not isinstance(model, Locost):
        yield
        return
    group = model.sequence
    model.use_sequence(Unconnected(group.size, group.rank))
    try:
        yield
    finally:
        model.use_sequence(group)


def _forward_and_backward(
    model: Model, train: TrainConfig, micro_batch: MicroBatch, device: torch.device
) -> None:
    """Those of an update; where micro-batches are accumulated, with the gradients of one before."""
    model.to(device).train()
    model.recompute_activations(train.recompute_activations)
    ids, mask, labels = (
        one.to(device)
        for one in (micro_batch.input_ids, micro_batch.attention_mask, micro_batch.labels)
    )
    for _ in range(min(train.accumulation, 2)):
        with torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bf16"):
            output = model(ids, mask, labels, loss_reduction="sum", loss_only=True, check=False)
        loss = output.loss
        del output
        loss.backward()
