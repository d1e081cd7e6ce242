"""train.py, but one rank fails in a way of its own at the third step.

deepspeed faulty_train.py {raise,sleep,memory} train.py's arguments...
"""

import os
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402 (the root first)

from pipeline import train  # noqa: E402
from pipeline.training import trainer  # noqa: E402

STEP = 2  # from 0


def fail(way: str) -> None:
    if way == "raise":
        raise KeyError("injected")
    if way == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.\nAnd more")
    time.sleep(1000)


if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    way = arguments.pop(0)
    seed_dropout = trainer.seed_dropout

    def faulty(seed: int, step: int, rank: int) -> None:
        if step == STEP and rank == int(os.environ["WORLD_SIZE"]) - 1:
            fail(way)
        seed_dropout(seed, step, rank)

    trainer.seed_dropout = faulty
    status = train.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
