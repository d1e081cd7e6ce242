"""DeepSpeed's own settings, filled in from the run's."""

import copy
import json
import logging
import os
from typing import Any

import torch

from pipeline.common import paths
from pipeline.config import RunConfig

WHOLE_BLOCKS = "ZeRO stage 3 gathers parameters inside the blocks"
"""Why those cannot be compiled."""
BLOCKS = ("zero_optimization", "bf16", "fp16", "torch_autocast")
STATED_ELSEWHERE = {
    "optimizer": "train.peak_lr, train.betas, train.weight_decay",
    "scheduler": "train.schedule, train.warmup_steps",
    "train_micro_batch_size_per_gpu": "train.batch_size, train.accumulation",
}


def deepspeed_settings(config: RunConfig, processes: int) -> dict[str, Any]:
    """The DeepSpeed JSON with the recipe's values filled in, for that many processes.

    Sizes, clipping and precision are stated once, in the recipe. A JSON that states another value
    is refused, and so is whatever would cast parameters away from fp32. Raises ValueError for what
    DeepSpeed itself would refuse.
    """
    settings = _read(config.deepspeed_config)
    stage = settings.get("zero_optimization", {}).get("stage", 0)
    if stage not in (1, 2, 3):
        raise ValueError(
            f"{config.deepspeed_config}: zero_optimization.stage is {stage!r}, expected 1, 2 or 3 "
            "(at stage 0 one non-finite gradient destroys the weights); use ds_configs/zero1.json"
        )
    for block in ("bf16", "fp16"):
        if settings.get(block, {}).get("enabled"):
            raise ValueError(
                f"{config.deepspeed_config}: {block}.enabled casts every parameter, the SSM's with "
                "them; remove the block and set --train.precision"
            )
    if stage == 3 and config.train.blocks == "compiled":
        raise ValueError(
            f"train.blocks compiled with {config.deepspeed_config}: {WHOLE_BLOCKS}; use "
            "ds_configs/zero2.json or --train.blocks auto"
        )
    for name, instead in STATED_ELSEWHERE.items():
        if name in settings:
            raise ValueError(
                f"{config.deepspeed_config}: remove '{name}'; the recipe states it ({instead})"
            )
    train = config.train
    accumulation = train.accumulation or 1  # 0: the trainer fills it in again
    groups = sequence_groups(train.sequence_parallel_size, processes)
    group = groups * accumulation
    if train.batch_size < group:
        fewer = train.batch_size // groups
        of_each = "processes" if groups == processes else "groups of processes"
        raise ValueError(
            f"train.batch_size {train.batch_size} cannot fill {groups} {of_each} x "
            f"train.accumulation {accumulation} = {group} micro-batches; use "
            + (f"--train.accumulation {fewer}, " if fewer else "fewer processes, ")
            + f"or --train.batch_size {group} (another run)"
        )
    communicated = settings.setdefault("communication_data_type", "fp32")
    ours = {
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": train.clip_norm,
        "torch_autocast": {
            "enabled": train.precision == "bf16",
            "dtype": "bfloat16",
            # Under autocast DeepSpeed reduces the gradients of these modules in bf16, whatever
            # communication_data_type says: none, where it says fp32.
            "lower_precision_safe_modules": [] if communicated == "fp32" else ["torch.nn.Linear"],
        },
    }
    for name, value in {"train_batch_size": train.batch_size, **ours}.items():
        if settings.setdefault(name, value) != value:
            raise ValueError(
                f"{config.deepspeed_config}: {name} is {settings[name]}, the recipe says {value}; "
                "remove it from the JSON, the recipe fills it in"
            )
    # DeepSpeed knows only equal micro-batches, and uses their size for its own statistics alone. It
    # is not told of sequence parallelism either: see docs/training.md.
    del settings["train_batch_size"]
    settings["train_micro_batch_size_per_gpu"] = train.batch_size // group
    _check_by_deepspeed(config.deepspeed_config, settings)
    return settings


def sequence_groups(size: int, processes: int) -> int:
    """How many groups of `size` the processes form; ValueError where some are left over."""
    if processes % size:
        raise ValueError(
            f"train.sequence_parallel_size {size} does not divide the {processes} processes; start "
            f"a multiple of {size}, or set --train.sequence_parallel_size to a divisor"
        )
    return processes // size


def _read(name: str) -> dict[str, Any]:
    """The JSON object in the file; ValueError for anything else, and for blocks of a wrong type."""
    try:
        settings = json.loads(paths.deepspeed_config(name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"deepspeed_config {name}: not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(
            f"deepspeed_config {name}: not a JSON object; ds_configs/zero1.json is an example"
        )
    for block in BLOCKS:
        if not isinstance(settings.get(block, {}), dict):
            raise ValueError(
                f"{name}: {block} is {settings[block]!r}, expected an object, such as "
                '{"stage": 1}; ds_configs/zero1.json is an example'
            )
    return settings


def _check_by_deepspeed(name: str, settings: dict[str, Any]) -> None:
    """Raise ValueError, in one line, with what DeepSpeed's own parser refuses."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it would guess, with a warning
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import logger

    level = logger.level
    logger.setLevel(logging.ERROR)  # it prints the refused value beside its exception
    try:
        DeepSpeedConfig(copy.deepcopy(settings))
    except Exception as error:  # assertions, pydantic's and its own, without a common class
        said = " ".join(str(error).split()).partition(" For further information")[0]
        raise ValueError(f"{name}: DeepSpeed refuses it: {said}") from None
    finally:
        logger.setLevel(level)
