"""Where every stage stands: its jobs, its progress, and the end of a failed one's log."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.chaining import slurm
from pipeline.chaining.reached import Reached, reached
from pipeline.chaining.record import Record, log_files
from pipeline.chaining.slurm import Job, Task
from pipeline.chaining.stages import Stage, completed
from pipeline.chaining.text import duration, table

TAIL_LINES = 15
TAIL_BYTES = 65536
IN_VAIN = "DependencyNeverSatisfied"
HEAD = ("stage", "job", "state", "reached", "left", "where")


@dataclass(frozen=True)
class Standing:
    """A stage's state now; `log` is shown where it failed."""

    stage: Stage
    jobs: tuple[int, ...]
    state: str
    reached: Reached
    where: str
    failed: bool = False
    log: Path | None = None

    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        left = self.reached.seconds_left
        return (
            self.stage.name,
            " ".join(map(str, self.jobs)),
            self.state,
            self.reached.text,
            "" if left is None else duration(left),
            self.where,
        )


def standings(
    stages: list[Stage], record: Record, queue: dict[int, Job], now: float
) -> list[Standing]:
    """Every stage's, in order; `now` in unix seconds."""
    done = completed(stages)
    seen = {stage.name: record.jobs(stage, queue) for stage in stages}
    forgotten = [
        entries[-1].job
        for stage in stages
        if stage.name not in done and not seen[stage.name] and (entries := record.of(stage))
    ]
    accounted = slurm.account(forgotten)
    for stage in stages:
        seen[stage.name] = seen[stage.name] or record.jobs(stage, accounted)
    return [_standing(stage, record, seen[stage.name], done, now) for stage in stages]


def _standing(
    stage: Stage, record: Record, jobs: list[Job], done: set[str], now: float
) -> Standing:
    submissions = record.of(stage)
    latest = (submissions[-1].job,) if submissions else ()
    if stage.name in done:
        return Standing(stage, latest, "complete", reached(stage, None, now), "")
    shown = [job for job in jobs if job.alive] or jobs[-1:]
    if not any(job.alive for job in jobs) and done.issuperset(stage.needs):
        shown = _cause(jobs)
    if not shown:
        state = "not submitted"
        if submissions:
            state = "not known any more (gone from the queue, not complete)"
        return Standing(
            stage, latest, state, reached(stage, None, now), "", failed=bool(submissions),
            log=_log(record, stage, submissions[-1].job, None) if submissions else None,
        )  # fmt: skip
    tasks = [task for job in shown for task in job.tasks]
    running = [task for task in tasks if task.alive and task.state != "PENDING"]
    since = min((task.start for task in running if task.start is not None), default=None)
    ended = not any(task.alive for task in tasks)
    faulty = [(job, task) for job in shown for task in job.tasks if task.failed or ended]
    return Standing(
        stage,
        tuple(job.id for job in shown),
        describe(tasks, now),
        reached(stage, since, now),
        ",".join(dict.fromkeys(task.nodes for task in running if task.nodes)),
        failed=bool(faulty),
        log=next((_log(record, stage, job.id, task.index) for job, task in faulty), None),
    )


def _cause(jobs: list[Job]) -> list[Job]:
    """Of links that all ended, the last that was not merely cancelled because of one before it."""
    own = [job for job in jobs if any(task.reason != IN_VAIN for task in job.tasks)]
    return own[-1:] or jobs[-1:]


def describe(tasks: list[Task], now: float) -> str:
    """The states of a stage's jobs and array tasks in words, with why they wait or failed."""
    counts = Counter(task.state for task in tasks)
    parts = []
    for state, count in counts.items():
        text = state.lower().replace("_", " ")
        if len(tasks) > 1:
            text = f"{count} {text}"
        alike = [task for task in tasks if task.state == state]
        starts = [task.start for task in alike if task.start is not None]
        if state == "RUNNING" and starts:
            text += f" {duration(now - min(starts))}"
        elif state == "COMPLETED" and len(counts) == 1:
            text = "ended without completing"
        elif reasons := dict.fromkeys(task.reason for task in alike if task.reason):
            text += f" ({', '.join(reasons)})".replace(IN_VAIN, "what it needs failed")
        parts.append(text)
    return ", ".join(parts)


def _log(record: Record, stage: Stage, job: int, task: int | None) -> Path | None:
    """The newest log of a job, or of one of its array tasks."""
    files = [
        path for entry in record.of(stage) if entry.job == job for path in log_files(entry, task)
    ]
    return max(files, key=lambda path: path.stat().st_mtime, default=None)


def report(found: list[Standing]) -> Iterator[str]:
    """The table, then the end of the log of each stage that failed."""
    yield table(HEAD, (standing.row() for standing in found))
    for standing in found:
        if standing.log is not None:
            yield f"\n{standing.stage.name} {standing.state}; {standing.log} ends:"
            yield from (f"    {line}" for line in tail(standing.log))


def tail(path: Path) -> list[str]:
    """The last lines of a log, as a terminal would leave them."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    shown = ["".join(c if c.isprintable() else " " for c in line).rstrip() for line in lines]
    return [line for line in shown if line][-TAIL_LINES:]
