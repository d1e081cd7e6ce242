"""Pre-train or fine-tune: `deepspeed pipeline/train.py --config RECIPE --data.train DIR ...`."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import os
import traceback
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)

import torch

from pipeline import distributed
from pipeline.config import parse
from pipeline.launch import host_name, place_from_environment
from pipeline.shards import DamagedData
from pipeline.training.health import RunFailed


def main(arguments: list[str]) -> int:
    """Exit status: 0 finished, 85 to be continued, 2 a setting or file is wrong, else failed.

    1 with the reason in a line, 70 where a process did not come or does not move.
    """
    is_main = os.environ.get("RANK", "0") == "0"
    try:
        is_main = place_from_environment(os.environ)[0] == 0
        config, dry_run = parse(arguments)
        world = distributed.start()
        from pipeline.training import trainer  # imports DeepSpeed: only once the settings are right

        prepared = trainer.prepare(config, world)
    except distributed.JoinFailed as error:  # into every process's log
        print(f"error: {error}", file=sys.stderr)
        return distributed.HANGS
    except (ValueError, OSError) as error:  # on all processes alike
        if is_main:
            print(f"error: {error}", file=sys.stderr)
        return 2
    if dry_run:
        if is_main:
            print(f"{config.to_yaml()}ready: {len(prepared.train)} training samples")
        prepared.checkpoints.leave_no_trace()
        return 0
    here = f"rank {world.rank} on {host_name()}"
    try:
        status = trainer.train(config, prepared, world)
    except RunFailed as error:  # on all processes alike
        if is_main:
            print(f"error: {error}", file=sys.stderr)
        return 1
    except DamagedData as error:
        print(f"error: {here}: {error}", file=sys.stderr)
        return 1
    except torch.OutOfMemoryError as error:
        print(
            f"error: {here}: {first_line(error)} With the same train.batch_size, raise "
            "--train.accumulation or the number of GPUs, set --train.recompute_activations true, "
            "or cut the lengths (--data.source_length)",
            file=sys.stderr,
        )
        return 1
    except Exception as error:  # the interpreter's own end could wait for the other processes
        traceback.print_exc()
        print(f"error: {here}: {type(error).__name__}: {first_line(error)}", file=sys.stderr)
        return 1
    distributed.stop()
    return status


def first_line(error: Exception) -> str:
    """What an error says, without what torch adds below."""
    return (str(error).splitlines() or [""])[0]


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # All is written and closed, and the interpreter's own end is left out: twice a finished run
    # started again ended with SIGABRT, cause unknown, which a queue would take for a failure.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
