"""Counts what a command asks of the file system below a folder.

    python -m pipeline.benchmarking.counted RESULTS FOLDER MODULE ...

runs MODULE with the arguments that follow and writes RESULTS/RANK.json: files opened and folders
listed below FOLDER, seconds, peak memory of the process in MB.
"""

import os
import runpy
import sys
import time
from collections import Counter
from pathlib import Path

from pipeline.common.files import replace_json

EVENTS = {"open": "opened", "os.listdir": "listed", "os.scandir": "listed"}


def main() -> None:
    """Run the command line; the module's exit status is kept."""
    results, below, module = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    counts = Counter(dict.fromkeys(EVENTS.values(), 0))

    def count(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and str(arguments[0]).startswith(below):
            counts[EVENTS[event]] += 1

    sys.addaudithook(count)
    sys.argv = sys.argv[3:]
    began = time.perf_counter()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        found = {
            **counts,
            "seconds": time.perf_counter() - began,
            "peak_mb": memory_mb("VmHWM"),
        }
        replace_json(results / f"{os.environ.get('OMPI_COMM_WORLD_RANK', 0)}.json", found)


def memory_mb(name: str) -> float:
    """This process's VmRSS or VmHWM, its peak; that of getrusage includes its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1000


if __name__ == "__main__":
    main()
