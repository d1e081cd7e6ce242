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
from pipeline.shards import DamagedData
from pipeline.training.health import RunFailed


def main(arguments: list[str]) -> int:
    """Exit status: 0 finished, 1 failed, 2 a setting or file is wrong, 85 to be continued."""
    is_main = distributed.place_from_environment(dict(os.environ))[0] == 0
    try:
        config, dry_run = parse(arguments)
        world = distributed.start()
        from pipeline.training import trainer  # imports DeepSpeed: only once the settings are right

        prepared = trainer.prepare(config, world)
    except (ValueError, OSError) as error:
        if is_main:
            print(f"error: {error}", file=sys.stderr)
        return 2
    if dry_run:
        if is_main:
            print(f"{config.to_yaml()}ready: {len(prepared.train)} training samples")
        prepared.checkpoints.leave_no_trace()
        return 0
    try:
        status = trainer.train(config, prepared, world)
    except RunFailed as error:  # on all processes alike
        if is_main:
            print(f"error: {error}", file=sys.stderr)
        return 1
    except DamagedData as error:
        print(f"error: rank {world.rank}: {error}", file=sys.stderr)
        return 1
    except torch.OutOfMemoryError as error:
        print(
            f"error: rank {world.rank}: {str(error).splitlines()[0]} With the same "
            "train.batch_size, raise --train.accumulation or the number of GPUs, set "
            "--train.recompute_activations true, or cut the lengths (--data.source_length)",
            file=sys.stderr,
        )
        return 1
    except Exception:  # the interpreter's own end could wait for the other processes
        traceback.print_exc()
        return 1
    distributed.stop()
    return status


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # All is written and closed, and the interpreter's own end is left out: twice a finished run
    # started again ended with SIGABRT, cause unknown, which a queue would take for a failure.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
