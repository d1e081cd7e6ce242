"""What a run chooses by test and trial: made once, by rank 0, and kept in RUN/choices.json.

A choice by timing would differ between processes, and after a restart, and with it the rounding.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipeline.baselines.registry import Model
from pipeline.common.files import read_object, replace_json
from pipeline.config import RunConfig
from pipeline.distributed.world import World
from pipeline.model import Locost
from pipeline.model.block_choice import choose_blocks
from pipeline.model.choosing import conditions
from pipeline.model.convolution_choice import choose_kernel_build, choose_transform
from pipeline.model.decoder import use_attention
from pipeline.model.ssm import ssm_layers
from pipeline.training.deepspeed_config import WHOLE_BLOCKS

FILE = "choices.json"  # in the run folder
Conditions = dict[str, Any]
Use = Callable[[str], tuple[str, str]]


class AutoSetting(NamedTuple):
    """One setting of `train` that may be auto."""

    name: str
    use: Use
    """Set the model to a candidate, for auto to the best: its name, and why, in one line."""


def set_choices(model: Model, config: RunConfig, world: World, stage: int, keep: bool) -> None:
    """Make a LOCOST model's choices, on all processes as rank 0 does; a collective.

    RUN/choices.json keeps them, where `keep`, for the same device and sizes. `stage`: of ZeRO.
    Raises ValueError on all processes where a candidate given by name cannot be used.
    """
    if not isinstance(model, Locost):
        return
    dtype = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
    where = conditions(world.device, dtype) | vars(model.config) | {"zero_stage": stage}
    for choice in choices(model, world.device, dtype, stage):
        given = getattr(config.train, choice.name)
        _settle(choice, given, Path(config.output), where, world, keep)


def _settle(
    choice: AutoSetting, given: str, run: Path, where: Conditions, world: World, keep: bool
) -> None:
    """Make one choice, of what is given for it: auto, or a candidate."""

    def choose() -> str:
        kept = recorded(run, choice.name)
        again = given == "auto" and kept.get("for") == where
        chosen, line = choice.use(kept.get("chosen", given) if again else given)
        print(f"{choice.name}: {line}")
        if keep:
            record(run, choice.name, chosen, where)
        return chosen

    chosen = world.on_all(lambda: choose() if world.is_main else "", ValueError, OSError)
    chosen = world.broadcast(chosen)
    world.on_all(lambda: None if world.is_main else choice.use(chosen), ValueError)


def choices(
    model: Locost, device: torch.device, dtype: torch.dtype, stage: int
) -> list[AutoSetting]:
    """In the order in which they are made: a trial runs with what was chosen before it."""
    layers = ssm_layers(model)

    def kernel_build(name: str) -> tuple[str, str]:
        build, line = choose_kernel_build(name, device, model.config)
        for layer in layers:
            layer.kernel_build = build
        return build, line

    def fft(name: str) -> tuple[str, str]:
        transform, line = choose_transform(name, device, model.config, layers[0].kernel_build)
        for layer in layers:
            layer.transform = transform
        return transform, line

    def blocks(name: str) -> tuple[str, str]:
        obstacle = WHOLE_BLOCKS if stage == 3 else None
        chosen, line = choose_blocks(name, model, device, dtype, obstacle)
        if chosen == "compiled":
            model.compile_blocks(dynamic=True)
        return chosen, line

    return [
        AutoSetting("attention", lambda name: use_attention(model.decoder, name, device, dtype)),
        AutoSetting("kernel_build", kernel_build),
        AutoSetting("fft", fft),
        AutoSetting("blocks", blocks),
    ]


def recorded(run: Path, name: str) -> dict[str, Any]:
    """What the run's folder says of a choice: `chosen`, and the conditions that it holds `for`."""
    entry = read_object(run / FILE).get(name)
    return entry if isinstance(entry, dict) else {}


def record(run: Path, name: str, chosen: Any, where: Conditions, **more: Any) -> None:
    """Write a choice into the run's folder."""
    entry = {"chosen": chosen, **more, "for": where}
    replace_json(run / FILE, read_object(run / FILE) | {name: entry})
