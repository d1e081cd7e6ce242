"""Evaluates, summarises and validates in several processes that share documents.

    shared_reading.py CASES_FILE

The file is JSON: {"processes": N, "size": P, "cases": [{"command", "arguments", "output"}]}. Each
rank writes what a case printed, or raised, to its `output` with the rank's number as suffix.
"""

import json
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[level]) for level in (2, 1)]

from ranks import fork_ranks  # noqa: E402

from pipeline import evaluate, summarize  # noqa: E402
from pipeline.config import parse  # noqa: E402
from pipeline.distributed import world as distributed  # noqa: E402
from pipeline.distributed.sequence_parallel import sequence_group  # noqa: E402
from pipeline.distributed.world import World  # noqa: E402
from pipeline.evaluation.evaluator import evaluate as evaluated  # noqa: E402
from pipeline.inference.decode import load  # noqa: E402
from pipeline.shards import Dataset  # noqa: E402
from pipeline.training.callbacks.stop_request import StopRequest  # noqa: E402
from pipeline.training.validation_set import ValidationSet, ValidationStopped  # noqa: E402


class LateStop(StopRequest):
    """Asked for on one rank after some looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def wants_stop(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def validate(world: World, checkpoint: str, looks: int, *arguments: str) -> None:
    """Print the scores as JSON; the last rank wants to stop after some looks, 0: it does not."""
    config, _ = parse(arguments)
    world = world.in_sequences(config.train.sequence_parallel_size)
    model, _ = load(Path(checkpoint), world.device, sequence_group(world))
    last = looks and world.rank == world.size - 1
    stop = LateStop(looks) if last else StopRequest()
    validation = ValidationSet(Dataset(config.data.validation), config, world)
    print(json.dumps(validation.run(model, stop)))


def run(case: Namespace, world: World, size: int) -> None:
    """One case on one rank."""
    if case.command == "evaluate":
        evaluated(evaluate.parse(case.arguments)[0], world)
    elif case.command == "summarize":
        options = summarize.parse(case.arguments)
        print("status", 0 if summarize.run(options, world.in_sequences(size)) else 2)
    else:
        validate(world, *case.arguments)


def main(processes: int, size: int, cases: list[dict]) -> None:
    world = distributed.start()
    for case in (Namespace(**one) for one in cases):
        with Path(f"{case.output}.{world.rank}").open("w") as file, redirect_stdout(file):
            try:
                run(case, world, size)
            except (ValueError, ValidationStopped) as error:
                print(f"{type(error).__name__}: {error}")
    distributed.stop()


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(fork_ranks(asked["processes"], partial(main, **asked)))
