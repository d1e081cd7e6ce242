"""Stages that stand in for the demo's: `python stub_stages.py FOLDER` runs them and a report.

Each stage writes its ten units of work one by one, holding a lock as trainings do, and resumes
after the last one written. It waits before unit 5 while a file `hold-STAGE` exists, and fails there
if `fail-STAGE` does.
"""

import sys
import time
from functools import partial
from pathlib import Path

from pipeline.common.files import hold_lock
from pipeline.stages.stage_runner import CommandStage, run_stages

NAMES = ("text", "shards", "pretrain", "finetune", "evaluate")
UNITS = 10


def work(folder: Path, name: str) -> None:
    """A stage's program. It is resumable, as all of the project's are."""
    output = folder / name
    output.mkdir(exist_ok=True)
    lock = hold_lock(output / ".lock")
    if lock is None:
        sys.exit(f"error: another process is using {output}")
    units = output / "units"
    done = len(units.read_text().split()) if units.exists() else 0
    for unit in range(done, UNITS):
        if unit == UNITS // 2:
            (folder.parent / f"begun-{name}").touch()
            while (folder.parent / f"hold-{name}").exists():
                time.sleep(0.02)
            if (folder.parent / f"fail-{name}").exists():
                sys.exit(3)
        with units.open("a") as file:
            file.write(f"{name}-{unit}\n")


def report(folder: Path) -> None:
    """All units of all stages."""
    text = "".join((folder / name / "units").read_text() for name in NAMES)
    (folder / "report.md").write_text(text)


def command(folder: Path, name: str) -> list[str]:
    return [sys.executable, __file__, str(folder), name]


def main(folder: Path) -> int:
    stages = [CommandStage(name, f"Stage {name}", partial(command, folder, name)) for name in NAMES]
    last = CommandStage("report", "Report", partial(command, folder, "report"))
    return run_stages(folder, {"units": UNITS}, stages, last)


if __name__ == "__main__":
    output = Path(sys.argv[1])
    if sys.argv[2:] == ["report"]:
        report(output)
    elif sys.argv[2:]:
        work(output, sys.argv[2])
    else:
        sys.exit(main(output))
