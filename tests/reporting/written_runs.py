"""Run folders as train.py leaves them, with made-up metrics."""

import json
from pathlib import Path

import numpy as np
import yaml

from pipeline.common.paths import ROOT


def write_run(folder: Path, metrics: list[dict], settings: dict, finished: bool = True) -> Path:
    """A run folder with these lines of metrics.jsonl and these settings."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if finished:
        (folder / "FINISHED").write_text("{}")
    return folder


def write_learning_run(folder: Path, seed: int, steps: int, validation: bool) -> Path:
    """A run whose losses fall, with a validation every tenth step if wanted."""
    rng = np.random.default_rng(seed)
    lines = []
    for step in range(1, steps + 1):
        loss = 4 + 4 * np.exp(-step / 20) + rng.normal(0, 0.1)
        lines.append({"step": step, "loss": loss, "lr": 0.01})
        if validation and step % 10 == 0:
            lines.append(
                {"step": step, "validation_loss": loss + 0.2, "validation_mean_rouge": step / 1000}
            )
    settings = {
        "output": str(folder),
        "model": {"d_model": 16, "init_from": None},
        "data": {"train": str(ROOT / "demo/shards/train")},
        "train": {"seed": seed, "betas": [0.9, 0.999]},
    }
    return write_run(folder, lines, settings)
