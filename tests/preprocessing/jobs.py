"""Real preprocessing jobs: single, under mpirun, concurrent, killed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = shutil.which("mpirun") or str(Path(sys.executable).parent / "mpirun")
LIMIT_SECONDS = 300  # ends a job that hangs; a busy machine needs over a minute
MPI_ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def arguments(corpus: Path, tokenizer: Path, output: Path, *more: object) -> list[str]:
    """The command line for a folder of C4 files."""
    options = ["--input", corpus / "c4-*", "--tokenizer", tokenizer, "--output", output, *more]
    return [str(option) for option in options]


def start(*options: str, ranks: int = 0, **environment: str) -> subprocess.Popen:
    """Start a job, as one process or on `ranks` MPI ranks."""
    mpirun = [MPIRUN, "--bind-to", "none", "--oversubscribe", "-n", str(ranks)] if ranks else []
    return subprocess.Popen(
        [*mpirun, sys.executable, str(ROOT / "preprocessing/pretrain.py"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**MPI_ENVIRONMENT, **environment},
    )


def launch(*options: str, ranks: int = 0, **environment: str) -> subprocess.CompletedProcess:
    """Run a job to its end."""
    process = start(*options, ranks=ranks, **environment)
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        kill(options[options.index("--output") + 1])
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def processes(output: object) -> list[int]:
    """The process ids that have this --output on their command line, mpirun's before its ranks'."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it ended just now
            continue
        if str(output).encode() in words:
            found.append(int(path.parent.name))
    return sorted(found)


def kill(output: object, number: int = signal.SIGKILL) -> None:
    """Send a signal to every process of a job at once."""
    for process in processes(output):
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
