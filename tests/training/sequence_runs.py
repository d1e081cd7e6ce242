"""Trains with sources that several processes share, in one process group, under OUTPUT/<name>.

sequence_runs.py PROCESSES OUTPUT train.py's arguments...
"""

import os
import sys
from functools import partial
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
sys.path[:1] = [str(Path(__file__).resolve().parents[level]) for level in (2, 1)]

from ranks import fork_ranks  # noqa: E402 (the root first)

from pipeline.config import parse  # noqa: E402
from pipeline.distributed import world as distributed  # noqa: E402
from pipeline.training.prepare import prepare  # noqa: E402
from pipeline.training.trainer import train  # noqa: E402

STEPS = 6
RECOMPUTED = ("--train.recompute_activations", "true")
SHARED = ("--train.sequence_parallel_size", "2")
BF16 = ("--train.precision", "bf16")
DROPOUT = ("--model.dropout", "0.2")
Case = tuple[str, int, tuple[str, ...]]
"""Name of the run, its steps until then, and options."""


def zero(name: str) -> tuple[str, str]:
    """The option of one of ds_configs/."""
    return ("--deepspeed_config", f"ds_configs/{name}.json")


PAIR: list[Case] = [
    ("zero1", STEPS, (*SHARED, *zero("zero1"), "--train.accumulation", "4")),
    ("zero2", STEPS, (*SHARED, *zero("zero2"), *RECOMPUTED)),
    ("zero2_offload", STEPS, (*SHARED, *zero("zero2_offload"))),
    ("bf16", STEPS, (*SHARED, *zero("zero2"), *BF16)),
    ("to and fro", 2, SHARED),
    ("to and fro", 4, ()),
    ("to and fro", STEPS, SHARED),
    ("dropout", STEPS, (*SHARED, *DROPOUT, *RECOMPUTED)),
    ("stopped", 3, (*SHARED, *DROPOUT, *RECOMPUTED)),
    ("stopped", STEPS, (*SHARED, *DROPOUT, *RECOMPUTED)),
    ("accumulation chosen", 2, (*SHARED, "--train.accumulation", "0")),
    # Last: DeepSpeed then replaces torch's linear function for good.
    ("zero3", STEPS, (*SHARED, *zero("zero3"), *RECOMPUTED)),
]
FOUR: list[Case] = [
    ("two groups of two", STEPS, (*SHARED, *zero("zero1"), "--train.accumulation", "1")),
    ("one group of four", STEPS, ("--train.sequence_parallel_size", "4", *zero("zero2"))),
]
CASES = {2: PAIR, 4: FOUR}


def main(cases: list[Case], output: Path, arguments: list[str]) -> None:
    world = distributed.start()
    for name, steps, options in cases:
        words = ["--output", str(output / name), "--train.max_steps", str(steps)]
        config, _ = parse([*arguments, *options, *words])
        assert train(config, prepare(config, world), world) == 0
    distributed.stop()


if __name__ == "__main__":
    processes, output, *arguments = sys.argv[1:]
    work = partial(main, CASES[int(processes)], Path(output), arguments)
    sys.exit(fork_ranks(int(processes), work))
