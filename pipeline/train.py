"""Pre-train or fine-tune: `deepspeed pipeline/train.py --config RECIPE --data.train DIR ...`.

Installed: `locost-train ...` in one process, `deepspeed --module pipeline.train ...` in several.
"""

if not __package__:
    import _start  # noqa: F401
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

warnings.filterwarnings("ignore", category=FutureWarning)

import torch

from pipeline.common.command_line import exit_on_user_error
from pipeline.config import parse
from pipeline.distributed import world as distributed
from pipeline.distributed.launcher_environment import host_name, place_from_environment
from pipeline.distributed.world import RunFailed
from pipeline.shards import DamagedData

if TYPE_CHECKING:
    from pipeline.training.callbacks.base import Callback


def main(arguments: Sequence[str] | None = None, callbacks: Sequence["Callback"] = ()) -> int:
    """Exit status: 0 finished, 85 stopped and saved, 2 a setting or file is wrong, else failed.

    1 with the reason in a line, 70 where a process did not join or makes no progress. `callbacks`
    are added to the trainer's own.
    """
    with exit_on_user_error():
        is_main = place_from_environment(os.environ)[0] == 0
    with exit_on_user_error(speaks=is_main):  # on all processes alike
        config, check = parse(sys.argv[1:] if arguments is None else arguments)
        if check and not check.inputs:
            from pipeline.training.deepspeed_config import deepspeed_settings

            deepspeed_settings(config, check.processes or 1)
            if config.baseline and config.init_from:  # of no earlier job: it must be there
                from pipeline.training.initial_model import baseline_folder

                baseline_folder(config.init_from, config.baseline)
            if is_main:
                print("ready: the arguments are valid")
            return 0
        try:
            world = distributed.start()
        except distributed.JoinFailed as error:  # into every process's log
            print(f"error: {error}", file=sys.stderr)
            return distributed.HANGS
        # They import DeepSpeed: after the settings' checks.
        from pipeline.training.prepare import prepare
        from pipeline.training.trainer import train

        prepared = prepare(config, world, check)
    if check:
        if is_main:
            later = "" if config.train.accumulation else "; accumulation is chosen at the start"
            print(f"{config.to_yaml()}ready: {len(prepared.train)} training samples{later}")
        prepared.checkpoints.leave_no_trace()
        return 0
    here = f"rank {world.rank} on {host_name()}"
    try:
        status = train(config, prepared, world, callbacks)
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
    except Exception as error:  # the interpreter's own exit could wait for the other processes
        traceback.print_exc()
        print(f"error: {here}: {type(error).__name__}: {first_line(error)}", file=sys.stderr)
        return 1
    distributed.stop()
    return status


def first_line(error: Exception) -> str:
    """What an error says, without what torch adds below."""
    return (str(error).splitlines() or [""])[0]


def run() -> NoReturn:
    """`main`, then the end of the process without the interpreter's own exit.

    All is written and closed by then; twice a finished run that was started again died of SIGABRT
    in the interpreter's exit, cause unknown, which a queue would take for a failure.
    """
    try:
        status = main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
