"""Trains with every ZeRO configuration, two micro-batches and two precisions, in one process group.

    deepspeed stage_matrix.py OUTPUT train.py's arguments...

A launch costs more than all trainings. Each leaves a run folder
OUTPUT/<configuration>-<accumulation>-<precision>.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from pipeline.config import parse  # noqa: E402
from pipeline.distributed import world as distributed  # noqa: E402 (the root first)
from pipeline.training.prepare import prepare  # noqa: E402
from pipeline.training.trainer import train  # noqa: E402

CONFIGURATIONS = ("zero1", "zero2", "zero3", "zero2_offload")
CASES = {
    processes: [
        (configuration, accumulation, precision)
        for configuration in CONFIGURATIONS
        for accumulation, precision in pairs
    ]
    for processes, pairs in ((1, [(1, "fp32"), (4, "bf16")]), (2, [(4, "fp32"), (1, "bf16")]))
}
"""By number of processes: each configuration, micro-batch and precision meets every other."""


def case_name(configuration: str, accumulation: int, precision: str) -> str:
    """The run folder's name."""
    return f"{configuration}-{accumulation}-{precision}"


def main(output: Path, arguments: list[str]) -> None:
    arguments = [word for word in arguments if not word.startswith("--local_rank")]
    world = distributed.start()
    for case in CASES[world.size]:
        configuration, accumulation, precision = case
        config, _ = parse(
            [
                *arguments,
                *("--deepspeed_config", f"ds_configs/{configuration}.json"),
                *("--train.accumulation", str(accumulation), "--train.precision", precision),
                *("--output", str(output / case_name(*case))),
            ]
        )
        assert train(config, prepare(config, world), world) == 0
    distributed.stop()


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    main(Path(words[0]), words[1:])
