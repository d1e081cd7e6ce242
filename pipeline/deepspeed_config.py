"""DeepSpeed's own settings, filled in from the run's."""

import json
from pathlib import Path
from typing import Any

from pipeline.config import ROOT, RunConfig


def deepspeed_settings(config: RunConfig, world_size: int) -> dict[str, Any]:
    """The DeepSpeed JSON with the recipe's values filled in.

    Sizes, clipping and precision are stated once, in the recipe. A JSON that states another value
    is refused, and so is whatever would cast parameters away from fp32.
    """
    path = Path(config.deepspeed_config)
    if not path.is_file() and (ROOT / path).is_file():
        path = ROOT / path
    try:
        settings = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(
            f"deepspeed_config {config.deepspeed_config}: {error.strerror}; give one of "
            "ds_configs/zero{1,2,3}.json"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"deepspeed_config {config.deepspeed_config}: not JSON: {error}"
        ) from error
    stage = settings.get("zero_optimization", {}).get("stage", 0)
    if stage not in (1, 2, 3):
        raise ValueError(
            f"{config.deepspeed_config}: zero_optimization.stage is {stage}, expected 1, 2 or 3 "
            "(at stage 0 one non-finite gradient destroys the weights); use ds_configs/zero1.json"
        )
    for block in ("bf16", "fp16"):
        if settings.get(block, {}).get("enabled"):
            raise ValueError(
                f"{config.deepspeed_config}: {block}.enabled casts every parameter, the SSM's with "
                "them; remove the block and set --train.precision"
            )
    if stage == 3 and config.train.compile:
        raise ValueError(
            f"train.compile with {config.deepspeed_config}: stage 3 gathers parameters inside the "
            "blocks; use ds_configs/zero2.json or --train.compile false"
        )
    for block in ("optimizer", "scheduler"):
        if block in settings:
            raise ValueError(
                f"{config.deepspeed_config}: remove '{block}'; the recipe states it "
                "(train.peak_lr, train.schedule, train.betas, train.weight_decay)"
            )
    train = config.train
    group = world_size * train.accumulation
    if train.batch_size % group:
        lower = max(1, train.batch_size // group) * group
        raise ValueError(
            f"train.batch_size {train.batch_size} does not divide into {world_size} processes x "
            f"train.accumulation {train.accumulation} = {group} micro-batches; use "
            f"--train.batch_size {lower} or {lower + group}"
        )
    communicated = settings.setdefault("communication_data_type", "fp32")
    ours = {
        "train_batch_size": train.batch_size,
        "gradient_accumulation_steps": train.accumulation,
        "gradient_clipping": train.clip_norm,
        "torch_autocast": {
            "enabled": train.precision == "bf16",
            "dtype": "bfloat16",
            # Under autocast DeepSpeed reduces the gradients of these modules in bf16, whatever
            # communication_data_type says: none, where it says fp32.
            "lower_precision_safe_modules": [] if communicated == "fp32" else ["torch.nn.Linear"],
        },
    }
    for name, value in ours.items():
        if settings.setdefault(name, value) != value:
            raise ValueError(
                f"{config.deepspeed_config}: {name} is {settings[name]}, the recipe says {value}; "
                "remove it from the JSON, the recipe fills it in"
            )
    return settings
