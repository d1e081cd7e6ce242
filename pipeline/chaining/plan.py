"""What of the chain is done, what is under way, and what is to be submitted."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.chaining.record import Record
from pipeline.chaining.resources import Request
from pipeline.chaining.settings import Settings
from pipeline.chaining.slurm import Job, in_vain
from pipeline.chaining.stages import Stage, completed


@dataclass(frozen=True)
class Step:
    """A stage as it stands.

    `runs`: how many time limits, one after the other, the rest of its work takes at most; `kept`
    are its jobs in the queue that stay, `replaced` those that wait in vain and are submitted anew;
    `lacking` the number of jobs to submit.
    """

    stage: Stage
    request: Request
    runs: int
    complete: bool
    kept: tuple[Job, ...]
    replaced: tuple[Job, ...]
    lacking: int

    @property
    def node_hours(self) -> float | None:
        """At most, of what is not complete; None where there is no time limit."""
        if self.complete:
            return 0.0
        if self.request.minutes is None:
            return None
        jobs = self.runs * max(self.stage.array, 1)
        return jobs * self.request.nodes * self.request.minutes / 60

    @property
    def gpu_hours(self) -> float | None:
        """As `node_hours`."""
        if not self.request.gpus:
            return 0.0
        return None if self.node_hours is None else self.node_hours * self.request.gpus


def plan(
    settings: Settings,
    stages: list[Stage],
    requests: Mapping[str, Request],
    record: Record,
    queue: dict[int, Job],
    share_left: float,
) -> list[Step]:
    """The steps, in the stages' order; `share_left` is what is left of the pre-training's steps.

    Raises ValueError where the pre-training cannot be done within its limits.
    """
    done, lost = completed(stages), in_vain(queue)
    steps: dict[str, Step] = {}
    for stage in stages:
        complete, request = stage.name in done, requests[stage.kind]
        runs = 1
        if stage.kind == "pretrain" and not complete:
            runs = pretrain_runs(settings, request, share_left)
        links = runs if stage.kind == "pretrain" and not settings.requeue else 1
        jobs: tuple[Job, ...] = ()
        if not complete:
            jobs = tuple(job for job in record.jobs(stage, queue) if job.alive)
        # What waits for a job that is to be submitted (anew) waits for the wrong one.
        behind = any(steps[need].lacking for need in stage.needs)
        behind = behind and all(job.waiting for job in jobs)
        replaced = tuple(job for job in jobs if behind or job.id in lost)
        kept = tuple(job for job in jobs if job not in replaced)
        lacking = 0 if complete else max(links - len(kept), 0)
        steps[stage.name] = Step(stage, request, runs, complete, kept, replaced, lacking)
    return list(steps.values())


def pretrain_runs(settings: Settings, request: Request, share_left: float) -> int:
    """Time limits that the rest of the pre-training takes, by PRETRAIN_HOURS.

    Raises ValueError where the limit leaves no time, or MAX_REQUEUES allows fewer.
    """
    try:
        runs = request.runs(settings.pretrain_hours * share_left)
    except ValueError as error:
        if settings.requeue and request.minutes is None:
            return 1
        raise ValueError(f"pretrain {error}") from None
    if settings.requeue and runs > settings.max_requeues + 1:
        raise ValueError(
            f"pretrain takes {runs} runs of {request.minutes:g} min for PRETRAIN_HOURS="
            f"{settings.pretrain_hours:g}, MAX_REQUEUES={settings.max_requeues} allows "
            f"{settings.max_requeues + 1}; raise it"
        )
    return runs
