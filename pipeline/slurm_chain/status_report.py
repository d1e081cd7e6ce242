"""The status of every stage: its jobs, its progress, and the end of the log if it failed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.slurm_chain import slurm_commands
from pipeline.slurm_chain.chain_settings import ChainSettings
from pipeline.slurm_chain.formatting import duration, table
from pipeline.slurm_chain.slurm_commands import SlurmJob
from pipeline.slurm_chain.stage_graph import ChainStage, completion_times, stale_stages
from pipeline.slurm_chain.stage_progress import StageProgress, stage_progress
from pipeline.slurm_chain.submission import PlannedStage, jobs_of

TAIL_LINES = 15
TAIL_BYTES = 65536
HEAD = ("stage", "jobs", "state", "progress", "left", "nodes")


@dataclass(frozen=True)
class StageStatus:
    """A stage's state; `log` is shown if it failed."""

    stage: ChainStage
    jobs: tuple[int, ...]
    state: str
    progress: StageProgress
    nodes: str = ""
    log: Path | None = None
    failed: bool = False

    def row(self) -> tuple[str, ...]:
        """Its row of the table."""
        left = self.progress.seconds_left
        return (
            self.stage.name,
            " ".join(map(str, self.jobs)),
            self.state,
            self.progress.text,
            "" if left is None else duration(left),
            self.nodes,
        )


def stage_statuses(
    settings: ChainSettings, stages: list[ChainStage], queue: list[SlurmJob], now: float
) -> list[StageStatus]:
    """The status of every stage, in order; `now` in unix seconds."""
    times = completion_times(stages)
    stale = stale_stages(stages, times)
    jobs = {stage.name: jobs_of(settings, stage, queue) for stage in stages}
    logs = {stage.name: last_log(settings, stage) for stage in stages}
    forgotten = {
        name: job
        for name, (job, _) in logs.items()
        if job is not None and not jobs[name] and name not in times
    }
    accounted = slurm_commands.accounted_jobs(forgotten.values())
    for name, number in forgotten.items():
        jobs[name] = [accounted.get(number, SlurmJob(number, "ENDED"))]
    return [
        _status(stage, jobs[stage.name], logs[stage.name][1], stage.name in times,
                stale.get(stage.name, ""), now)
        for stage in stages
    ]  # fmt: skip


def _status(
    stage: ChainStage,
    jobs: list[SlurmJob],
    log: Path | None,
    complete: bool,
    stale: str,
    now: float,
) -> StageStatus:
    alive = [job for job in jobs if job.alive]
    shown = alive or jobs[-1:]
    running = [job for job in alive if not job.pending]
    since = min((job.start for job in running if job.start is not None), default=None)
    failed = not complete and not alive and bool(jobs)
    if complete and not alive:
        state = f"stale: {stale}" if stale else "complete"
    else:
        state = describe(shown, now) if shown else "not submitted"
    return StageStatus(
        stage,
        tuple(job.id for job in shown),
        state,
        stage_progress(stage, since, now),
        ",".join(dict.fromkeys(job.nodes for job in running if job.nodes)),
        log if failed else None,
        failed,
    )


def describe(jobs: list[SlurmJob], now: float) -> str:
    """The states of a stage's jobs, with the reason why they wait or failed."""
    counts = Counter(job.state for job in jobs)
    parts = []
    for state, count in counts.items():
        text = state.lower().replace("_", " ")
        if len(jobs) > 1:
            text = f"{count} {text}"
        alike = [job for job in jobs if job.state == state]
        starts = [job.start for job in alike if job.start is not None]
        if state == "RUNNING" and starts:
            text += f" {duration(now - min(starts))}"
        elif state in ("COMPLETED", "ENDED"):
            text = "ended, not complete: chain.sh resumes it"
        elif reasons := dict.fromkeys(job.reason for job in alike if job.reason):
            text += f" ({', '.join(reasons)})"
        parts.append(text)
    return ", ".join(parts)


def last_log(settings: ChainSettings, stage: ChainStage) -> tuple[int | None, Path | None]:
    """The newest log of a stage, and its job's id."""
    pattern = stage.log(settings, "*")
    start, end = (len(part) for part in pattern.name.split("*"))
    logs = [
        path
        for path in pattern.parent.glob(pattern.name)
        if path.name[start : len(path.name) - end].isdecimal()
    ]
    newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    return (None, None) if newest is None else (int(newest.name[start:-end]), newest)


def status_lines(statuses: list[StageStatus]) -> Iterator[str]:
    """The table, the remedy for what is stale, then the end of the log of each failed stage."""
    yield table(HEAD, (status.row() for status in statuses))
    if any(status.state.startswith("stale") and not status.stage.summary for status in statuses):
        yield "\nto repeat a stale stage, delete its folder and run chain.sh"
    for status in statuses:
        if status.log is not None:
            yield f"\n{status.stage.name} {status.state}; {status.log} ends:"
            yield from (f"    {line}" for line in tail(status.log))


def plan_lines(
    settings: ChainSettings,
    planned: Iterable[PlannedStage],
    starts: Mapping[str, str],
    feeds: Mapping[str, str],
) -> Iterator[str]:
    """What chain.sh would do, as a table.

    `starts`: when each stage could start if it came next; `feeds`: the report's tables and figures
    for which it is needed.
    """
    yield f"repository {settings.root}, runs in {settings.runs}, shards in {settings.shards}\n"
    head = ("stage", "needs", "jobs", "state", "feeds", "could start")
    yield table(head, ((*_plan_row(settings, one), feeds.get(one.stage.name, ""),
                        starts.get(one.stage.name, "")) for one in planned))  # fmt: skip


def _plan_row(settings: ChainSettings, one: PlannedStage) -> tuple[str, ...]:
    stage, links = one.stage, one.stage.links(settings)
    needs = ", ".join(stage.needs) or "-"
    if len(stage.needs) > 2:
        needs = f"{len(stage.needs)} stages"
    jobs = f"{stage.parallel} at once" if stage.parallel > 1 else "1"
    if links > 1:
        jobs += f", {links} links"
    state = "to submit" + (" again" if one.replaced else "")
    if one.complete:
        state = f"stale: {one.stale}" if one.stale else "complete"
    elif one.queued:
        state = "in the queue as job " + " ".join(str(job.id) for job in one.queued)
    return stage.name, needs, jobs, state


def tail(path: Path) -> list[str]:
    """The last lines of a log, as a terminal would show them."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    shown = ["".join(c if c.isprintable() else " " for c in line).rstrip() for line in lines]
    return [line for line in shown if line][-TAIL_LINES:]
