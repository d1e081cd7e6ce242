"""Speed, as ratios within one run: `python pipeline/benchmark.py precision --config RECIPE`."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import time

import torch
import yaml

from pipeline.files import replace_json
from pipeline.model import Locost, LocostConfig
from pipeline.progress import progress

ROUNDS = 5
CLEARLY = 1.1  # a smaller lead of fp32 is noise, and would make two runs of the demo differ


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
    """The precision to train in on this CPU: bf16, unless fp32 takes clearly less time."""
    return "fp32" if seconds["bf16"] > CLEARLY * seconds["fp32"] else "bf16"


def main(arguments: list[str]) -> int:
    """Exit status: 0, or 2 when an argument is wrong."""
    parser = argparse.ArgumentParser(prog="benchmark.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "precision", help="time a training step in bf16 and in fp32 on this CPU"
    )
    command.add_argument("--config", type=Path, required=True, help="recipe that gives the sizes")
    command.add_argument("--samples", type=int, default=8, help="samples in the step (8)")
    command.add_argument("--vocab_size", type=int, default=8100, help="ids (8100)")
    command.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    command.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    options = parser.parse_args(arguments)
    try:
        seconds = precision(options.config, options.samples, options.vocab_size, options.threads)
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        print(
            f"error: {options.config} is no recipe to time ({type(error).__name__}: {error}); give "
            "one with model, data.source_length and data.target_length",
            file=sys.stderr,
        )
        return 2
    print(
        f"one step: bf16 {seconds['bf16']:.3f} s, fp32 {seconds['fp32']:.3f} s "
        f"(fp32 / bf16 = {seconds['fp32'] / seconds['bf16']:.2f}): {faster(seconds)} is the faster"
    )
    if options.output:
        replace_json(options.output, {"seconds": seconds, "faster": faster(seconds)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
