"""Slurm's commands: the chain's only calls of squeue, sbatch, scancel and sacct."""

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

SECONDS = 120  # a loaded controller is slow; squeue itself times out earlier
PATIENCE = 600.0  # seconds for which a query is repeated while the controller does not answer
AWAY = "Unable to contact|timed out|Connection refused|did not answer"
GONE = "Invalid job id specified|already completing or completed"
FINAL = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL",
    "DEADLINE", "PREEMPTED", "REVOKED",
    "ENDED",  # ours: Slurm no longer knows how
}  # fmt: skip
FORMAT = "%i|%T|%r|%S|%N|%j|%k"  # id, state, reason, start, nodes, name, comment
ACCOUNT_FORMAT = "JobID,State,Reason,Start,NodeList,JobName,Comment"  # the same


@dataclass(frozen=True)
class SlurmJob:
    """A job as the queue shows it; `start` in unix seconds."""

    id: int
    state: str
    reason: str = ""
    start: float | None = None
    nodes: str = ""
    name: str = ""
    comment: str = ""

    @property
    def alive(self) -> bool:
        """Whether it is pending, running or completing."""
        return self.state not in FINAL

    @property
    def pending(self) -> bool:
        """Whether it has not started."""
        return self.state == "PENDING"


def queue() -> list[SlurmJob]:
    """This user's jobs that the controller knows, including recently ended ones, by id.

    Raises ValueError if Slurm is missing or does not answer for ten minutes.
    """
    return parse_queue(
        _patiently("squeue", "--noheader", "--all", "--states=all",
                   f"--user={os.getuid()}", f"--format={FORMAT}")
    )  # fmt: skip


def parse_queue(text: str) -> list[SlurmJob]:
    """The jobs in lines of FORMAT; others (arrays, a cluster's name) are skipped."""
    jobs = []
    for line in text.splitlines():
        number, *fields = line.split("|", FORMAT.count("|"))
        if number.isdecimal() and len(fields) == FORMAT.count("|"):
            state, reason, start, *rest = fields
            # sacct has "CANCELLED by 1000"
            state, reason = state.partition(" ")[0], "" if reason == "None" else reason
            jobs.append(SlurmJob(int(number), state, reason, _seconds(start), *rest))
    return sorted(jobs, key=lambda job: job.id)


def accounted_jobs(jobs: Iterable[int]) -> dict[int, SlurmJob]:
    """Jobs that the controller has forgotten, from the accounting; empty if it is disabled."""
    ids = ",".join(map(str, jobs))
    if not ids:
        return {}
    try:
        text = _call("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={ids}",
                     f"--format={ACCOUNT_FORMAT}")  # fmt: skip
    except ValueError:
        return {}
    return {job.id: job for job in parse_queue(text)}


@dataclass(frozen=True)
class BatchScript:
    """A script and its flags, submitted from `folder`; `own` flags come last, so that they hold."""

    script: Path
    arguments: Sequence[str]
    flags: Sequence[str]
    own: Sequence[str]
    folder: Path
    environment: Mapping[str, str]

    def submit(self, after: Sequence[int]) -> int:
        """Submit it, to start when all of `after` have ended in any way; returns the job id.

        Raises ValueError with sbatch's message.
        """
        dependency = f"--dependency=afterany:{':'.join(map(str, after))}"
        return parse_id(
            self._sbatch("--parsable", "--export=ALL", *([dependency] if after else []))
        )

    def test(self) -> str:
        """When and where it would start, in sbatch's words. Raises ValueError if it is refused."""
        return self._sbatch("--test-only")

    def _sbatch(self, *last: str) -> str:
        return _call(
            "sbatch", *self.flags, *self.own, *last, str(self.script), *self.arguments,
            folder=self.folder, environment=self.environment,
        )  # fmt: skip


def parse_id(text: str) -> int:
    """The id that `sbatch --parsable` prints: 12, or 12;cluster. Raises ValueError without one.

    A site's own lines around it are skipped.
    """
    found = re.findall(r"^(\d+)(?:;\S+)?$", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"sbatch printed no job id, but: {' '.join(text.split()) or 'nothing'}")
    return int(found[0])


def is_transient(refused: str) -> bool:
    """Whether nodes that are down or drained may be the reason: sbatch still queues such a job."""
    return "node configuration is not available" in refused


def cancel(job: SlurmJob, *flags: str) -> None:
    """Cancel a job; one that has ended meanwhile is left."""
    try:
        _patiently("scancel", *flags, str(job.id))
    except ValueError as error:
        if not re.search(GONE, str(error)):
            raise


def _patiently(*command: str) -> str:
    """The output of a command that may be repeated, tried while the controller is away."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return _call(*command)
        except ValueError as error:
            if not re.search(AWAY, str(error)) or time.monotonic() > until:
                raise
        time.sleep(2)


def _call(
    *command: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """The output of a command. Raises ValueError, in one line, if it fails."""
    if environment is None:  # a query: the user's defaults must not filter or reformat it
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SQUEUE_", "SACCT_", "SLURM_TIME_FORMAT"))
        }
    try:
        done = subprocess.run(
            command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, close_fds=False,
            capture_output=True, text=True, errors="replace", timeout=SECONDS,
        )  # fmt: skip
    except FileNotFoundError:
        raise ValueError(
            f"{command[0]} is not installed here; run this on a machine with Slurm"
        ) from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command[0]} did not answer within {SECONDS} s") from None
    if done.returncode:
        said = re.sub(r"^\w+: (error: )?", "", done.stderr or done.stdout, flags=re.MULTILINE)
        raise ValueError(f"{command[0]}: {' '.join(said.split()) or f'status {done.returncode}'}")
    return done.stdout or done.stderr  # sbatch --test-only answers on standard error


def _seconds(text: str) -> float | None:
    """Slurm's local time in unix seconds; None for N/A."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
