"""Slurm as the chain sees it: the only module that calls squeue, sbatch, scancel and sacct."""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

SECONDS = 120  # a controller under load answers late; squeue itself gives up before
FINAL = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL",
    "DEADLINE", "PREEMPTED", "REVOKED",
}  # fmt: skip
FORMAT = "%i|%T|%r|%S|%N|%j|%E|%k"  # id, state, reason, start, nodes, name, dependency, comment
# As many fields in the same order; an ended job depends on nothing.
ACCOUNT_FORMAT = "JobID,State,Reason,Start,NodeList,JobName,Partition,Comment"


@dataclass(frozen=True)
class Task:
    """A job, or one task of an array, as the queue shows it; `start` in unix seconds."""

    state: str
    reason: str = ""
    start: float | None = None
    nodes: str = ""
    index: int | None = None

    @property
    def alive(self) -> bool:
        """Whether it waits, runs or is ending."""
        return self.state not in FINAL

    @property
    def failed(self) -> bool:
        """Whether it ended, and not well."""
        return not self.alive and self.state != "COMPLETED"


@dataclass(frozen=True)
class Job:
    """A job of ours: one task, or those of an array; `dependency` is what it still waits for."""

    id: int
    name: str
    comment: str = ""
    tasks: list[Task] = field(default_factory=list)
    dependency: str = ""

    @property
    def alive(self) -> bool:
        """Whether any of it waits or runs."""
        return any(task.alive for task in self.tasks)

    @property
    def failed(self) -> bool:
        """Whether any of it ended, and not well."""
        return any(task.failed for task in self.tasks)

    @property
    def waiting(self) -> bool:
        """Whether none of it has started."""
        return all(task.state == "PENDING" for task in self.tasks)

    def awaited(self) -> list[str]:
        """What `afterok:` may name, so that it comes true when this job ends well.

        Of an array that lost tasks these are the others: each of them ends when the whole is done.
        Raises ValueError where nothing can end well any more.
        """
        if not self.failed:
            return [str(self.id)]
        alive = [f"{self.id}_{task.index}" for task in self.tasks if task.alive]
        if not alive or self.tasks[0].index is None:
            raise ValueError(f"job {self.id} ({self.name}) has already ended badly")
        return alive


def queue() -> dict[int, Job]:
    """This user's jobs that the controller knows, those that ended a short while ago too.

    Raises ValueError where Slurm is missing or does not answer.
    """
    return parse_queue(
        _call("squeue", "--noheader", "--array", "--all", "--states=all",
              f"--user={os.getuid()}", f"--format={FORMAT}")
    )  # fmt: skip


def parse_queue(text: str) -> dict[int, Job]:
    """The jobs in lines of FORMAT, by id; other lines (a cluster's name) are passed over."""
    jobs: dict[int, Job] = {}
    for line in text.splitlines():
        number, *fields = line.split("|", FORMAT.count("|"))
        match = re.fullmatch(r"(\d+)(?:_(\d+))?", number)
        if match is None or len(fields) != FORMAT.count("|"):
            continue
        state, reason, start, nodes, name, dependency, comment = fields
        job = Job(int(match[1]), name, comment, dependency=dependency)
        job = jobs.setdefault(job.id, job)
        index = int(match[2]) if match[2] else None
        job.tasks.append(
            Task(state, "" if reason == "None" else reason, _seconds(start), nodes, index)
        )
    return jobs


def in_vain(queue: Mapping[int, Job]) -> set[int]:
    """Ids of the jobs that wait for one that ended badly, or for one that waits so.

    Slurm cancels them, but not at once: what waits for an array only when its last task has ended.
    """
    found: set[int] = set()
    while more := {
        job.id
        for job in queue.values()
        if job.waiting
        and job.id not in found
        and any(_lost(queue, found, *r) for r in _awaits(job))
    }:
        found |= more
    return found


def _awaits(job: Job) -> list[tuple[int, int | None]]:
    """What a job waits for: (job, array task or None for the whole)."""
    found = re.findall(r"afterok:(\d+)(?:_(\d+))?", job.dependency)
    return [(int(number), int(index) if index else None) for number, index in found]


def _lost(queue: Mapping[int, Job], vain: set[int], number: int, index: int | None) -> bool:
    if number in vain:
        return True
    tasks = queue[number].tasks if number in queue else []
    return any(task.failed and index in (None, task.index) for task in tasks)


def account(jobs: Iterable[int]) -> dict[int, Job]:
    """What the accounting says of jobs that the controller forgot; empty where there is none."""
    ids = ",".join(map(str, jobs))
    if not ids:
        return {}
    try:
        text = _call("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={ids}",
                     f"--format={ACCOUNT_FORMAT}")  # fmt: skip
    except ValueError:
        return {}
    # "CANCELLED by 1000"
    lines = (re.sub(r"^([^|]*\|\w+)[^|]*", r"\1", line) for line in text.splitlines())
    return parse_queue("\n".join(lines))


@dataclass(frozen=True)
class Batch:
    """A script as sbatch gets it, submitted from `folder`; `array` tasks, 0 for a plain job."""

    script: Path
    argument: str | None
    name: str
    array: int
    flags: Sequence[str]
    folder: Path
    environment: Mapping[str, str]

    def submit(self, *, comment: str, log: str, after: Sequence[str]) -> int:
        """Submit it, to start when all of `after` have ended well; its job id.

        Raises ValueError with what sbatch said.
        """
        dependency = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
        text = self._sbatch(
            "--parsable", f"--comment={comment}", f"--output={log}", "--export=ALL",
            *(dependency if after else ()),
        )  # fmt: skip
        return parse_id(text)

    def refusal(self) -> str | None:
        """What sbatch has against the job, which is not submitted; None if nothing."""
        try:
            self._sbatch("--test-only")
        except ValueError as error:
            return str(error)
        return None

    def _sbatch(self, *own: str) -> str:
        tasks = [f"--array=1-{self.array}"] if self.array else []
        argument = [self.argument] if self.argument else []
        return _call(
            "sbatch", *own, f"--job-name={self.name}", *tasks, *self.flags, str(self.script),
            *argument, folder=self.folder, environment=self.environment,
        )  # fmt: skip


def parse_id(text: str) -> int:
    """The id in what `sbatch --parsable` prints: 12, or 12;cluster. Raises ValueError without one.

    A site's own lines around it are passed over; the id must be certain, for a job that is to
    follow an unknown one starts at once.
    """
    found = re.findall(r"^(\d+)(?:;\S+)?$", text, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"sbatch printed no job id, but: {' '.join(text.split()) or 'nothing'}")
    return int(found[0])


def is_passing(refused: str) -> bool:
    """Whether a refusal may be due to nodes that are down or drained: sbatch queues such a job."""
    return "node configuration is not available" in refused


def cancel(job: Job) -> None:
    """Cancel a job that has not started; one that started meanwhile goes on."""
    _call("scancel", "--state=PENDING", str(job.id))


def _call(
    *command: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """What a command prints. Raises ValueError, of one line, where it fails."""
    if environment is None:  # a question: nothing of the user's may narrow or reformat the answer
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
        raise ValueError(f"{command[0]} is not here: run this where Slurm is") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command[0]} did not answer within {SECONDS} s") from None
    if done.returncode:
        said = re.sub(r"^\w+: (error: )?", "", done.stderr or done.stdout, flags=re.MULTILINE)
        said = " ".join(said.split())
        raise ValueError(f"{command[0]}: {said or f'exit status {done.returncode}'}")
    return done.stdout


def _seconds(text: str) -> float | None:
    """Slurm's local time in unix seconds; None for N/A and the like."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
