"""Back to an older checkpoint of a run that diverged: `--train.resume_from STEP`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

ASIDE = "before-rewind-"
"""Folders in the run folder with what a rewind took out of the run."""


def set_aside(run: Path, tags: Sequence[str]) -> Path:
    """Move these checkpoints, and what belongs to them, out of the run; nothing is deleted.

    The newest goes first, so that a rewind which is interrupted can be repeated.
    """
    number = len(list(run.glob(f"{ASIDE}*"))) + 1
    aside = run / f"{ASIDE}{number}"
    aside.mkdir()
    if (run / "metrics.jsonl").is_file():
        shutil.copy2(run / "metrics.jsonl", aside)
    if (run / "FINISHED").is_file():
        (run / "FINISHED").rename(aside / "FINISHED")
    for tag in sorted(tags, reverse=True):
        (run / "checkpoints" / tag).rename(aside / tag)
    return aside
