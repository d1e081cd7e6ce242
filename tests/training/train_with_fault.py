"""train.py with one fault: `FAULT=PLACE:RANK:STEP:DEED deepspeed train_with_fault.py arguments...`.

PLACE is `update` (before an update), `save` (when half of a process's moments are written) or
`named` (when a whole checkpoint just got its name); DEED is `kill` (this process) or `kill-all`
(the process group, the launcher with it).
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from pipeline import train  # noqa: E402 (the root first)


def fail(deed: str) -> None:
    if deed == "kill-all":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str, rank: str, step: str, deed: str) -> None:
    from pipeline.training import checkpoint, trainer

    if os.environ.get("RANK", "0") != rank:
        return
    owner: Any
    owner, name = {
        "update": (trainer, "update"),
        "save": (checkpoint, "save_moments"),
        "named": (checkpoint, "fsync_folder"),
    }[place]
    reached = {"step": 0}
    proper, seed_dropout = getattr(owner, name), trainer.seed_dropout

    def seed(seed: int, done: int, of_rank: int) -> None:
        reached["step"] = done + 1
        seed_dropout(seed, done, of_rank)

    def faulty(*arguments: Any) -> Any:
        if reached["step"] == int(step):
            if place == "save":
                proper(*arguments)
                os.truncate(arguments[1], arguments[1].stat().st_size // 2)
            fail(deed)
        return proper(*arguments)

    trainer.seed_dropout = seed
    setattr(owner, name, faulty)


if __name__ == "__main__":
    arm(*os.environ["FAULT"].split(":"))
    os._exit(train.main(sys.argv[1:]))
