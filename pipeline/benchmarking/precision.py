"""The faster of bf16 and fp32 for training on a CPU."""

import time
from pathlib import Path

import torch
import yaml

from pipeline.common.progress import progress
from pipeline.model import Locost, LocostConfig

ROUNDS = 5
CLEARLY = 1.1  # a smaller advantage of fp32 is noise, and would make two runs of the demo differ


def step_seconds(model: Locost, batch: tuple[torch.Tensor, torch.Tensor], bf16: bool) -> float:
    """Seconds of one forward and backward pass on (input_ids, labels)."""
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(batch[0], None, batch[1]).loss
    loss.backward()
    return time.perf_counter() - began


def precision(recipe: Path, samples: int, vocab_size: int, threads: int) -> dict[str, float]:
    """Best seconds of a training step in bf16 and in fp32, interleaved, at the recipe's sizes."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    settings = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    model = Locost(LocostConfig(vocab_size=vocab_size, **settings["model"]))
    batch = (
        torch.randint(3, vocab_size, (samples, settings["data"]["source_length"])),
        torch.randint(3, vocab_size, (samples, settings["data"]["target_length"])),
    )
    best = {"bf16": float("inf"), "fp32": float("inf")}
    for _ in progress(range(ROUNDS), ROUNDS, "Steps in bf16 and fp32", "pairs"):
        for name in best:
            best[name] = min(best[name], step_seconds(model, batch, bf16=name == "bf16"))
    return best


def faster(seconds: dict[str, float]) -> str:
    """The precision to train in: bf16, unless fp32 takes clearly less time."""
    return "fp32" if seconds["bf16"] > CLEARLY * seconds["fp32"] else "bf16"
