"""Forks a script's process into the ranks of a run: what it has imported is imported once."""

import os
import sys
import traceback
from collections.abc import Callable

from pipeline.distributed.world import free_port


def fork_ranks(size: int, work: Callable[[], None]) -> int:
    """Call `work` in `size` processes, with the environment that a launcher gives.

    0, or the exit status of one that failed; the others are then killed.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(size))
    ranks = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            try:
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            os._exit(status)
        ranks.append(pid)
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, 9)
            return os.waitstatus_to_exitcode(status) or 1
    return 0
