"""Which jobs are missing, whether they can run, and their submission."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.slurm_chain import slurm_commands
from pipeline.slurm_chain.chain_settings import ChainSettings
from pipeline.slurm_chain.slurm_commands import BatchScript, SlurmJob
from pipeline.slurm_chain.stage_graph import ChainStage, completion_times, stale_stages

CHECKS_AT_ONCE = 4


@dataclass(frozen=True)
class PlannedStage:
    """A stage with its state.

    `queued`: its jobs that stay in the queue. `replaced`: its pending jobs that wait for a job that
    has ended, while that one is submitted again. `submit`: whether its jobs are missing.
    """

    stage: ChainStage
    complete: bool
    stale: str
    queued: tuple[SlurmJob, ...]
    replaced: tuple[SlurmJob, ...]
    submit: bool


def plan_stages(
    settings: ChainSettings, stages: list[ChainStage], queue: list[SlurmJob]
) -> list[PlannedStage]:
    """Every stage's plan, in order; a stage with a job in the queue is left as it is."""
    times = completion_times(stages)
    stale = stale_stages(stages, times)
    planned: dict[str, PlannedStage] = {}
    for stage in stages:
        reason = stale.get(stage.name, "")
        complete = stage.name in times and not (stage.summary and reason)
        jobs = [job for job in jobs_of(settings, stage, queue) if job.alive]
        again = not complete and any(planned[need].submit for need in stage.needs)
        replaced = [job for job in jobs if again and job.pending]
        queued = [job for job in jobs if job not in replaced]
        # One that runs while its inputs are to be made again will refuse to work, or has begun.
        submit = not complete and (again or not queued)
        planned[stage.name] = PlannedStage(
            stage, complete, reason, tuple(queued), tuple(replaced), submit
        )
    return list(planned.values())


def jobs_of(settings: ChainSettings, stage: ChainStage, queue: list[SlurmJob]) -> list[SlurmJob]:
    """A stage's jobs, by id: those with its comment, or, where a site rewrites it, with its log."""
    return [
        job
        for job in queue
        if job.comment == stage.comment(settings)
        or (job.name == stage.job_name(settings) and stage.log(settings, str(job.id)).exists())
    ]


@dataclass(frozen=True)
class Checks:
    """When each stage could start; why stages cannot run; `notes`: why they may have to wait."""

    starts: dict[str, str]
    errors: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Submitter:
    """Checks and submits stages in one environment; `submission` identifies this call."""

    settings: ChainSettings
    environment: Mapping[str, str]
    commit: str
    submission: str

    def check(self, planned: list[PlannedStage]) -> Checks:
        """Check the stages to submit.

        The script of each checks all its inputs where its predecessors are complete, else all that
        needs no input; `sbatch --test-only` checks the job.
        """
        complete = {one.stage.name for one in planned if one.complete}
        wanted = [one.stage for one in planned if one.submit]
        checks = Checks({}, [], [])
        with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
            tests = pool.map(self._test, wanted)
            problems = pool.map(lambda s: self._check(s, complete.issuperset(s.needs)), wanted)
            for stage, (start, refused), problem in zip(wanted, tests, problems, strict=True):
                checks.starts[stage.name] = start
                if refused:
                    transient = slurm_commands.is_transient(refused)
                    faults = checks.notes if transient else checks.errors
                    faults.append(f"{stage.name}: {refused}")
                if problem:
                    checks.errors.append(f"{stage.name}: {problem}")
        return checks

    def submit(self, planned: list[PlannedStage]) -> Iterator[str]:
        """Submit the missing jobs; a line for each.

        Every job starts after the jobs of the stages it needs have ended in any way; its script
        then refuses to work without their markers. Raises ValueError if sbatch fails; jobs
        submitted before that stay in the queue.
        """
        (self.settings.runs / "logs").mkdir(parents=True, exist_ok=True)
        ids = {one.stage.name: [job.id for job in one.queued] for one in planned}
        for one in planned:
            if not one.submit:
                continue
            stage, running = one.stage, [job.id for job in one.queued]
            needed = [*running, *(job for need in stage.needs for job in ids[need])]
            for _ in range(stage.parallel):
                after = needed
                for _ in range(stage.links(self.settings)):
                    job = self._submit(stage, after, ids[stage.name])
                    stage.log(self.settings, str(job)).touch()  # the record of the submission
                    ids[stage.name].append(job)
                    behind = f", after {', '.join(map(str, after))}" if after else ""
                    yield f"{stage.name}: job {job}{behind}"
                    after = [job]

    def _submit(self, stage: ChainStage, after: list[int], known: list[int]) -> int:
        try:
            return self._batch(stage).submit(after)
        except ValueError as error:
            if not re.search(slurm_commands.AWAY, str(error)):
                raise ValueError(f"{stage.name}: {error}") from None
        queue = slurm_commands.queue()  # once the controller is back: it may have accepted the job
        found = [job.id for job in jobs_of(self.settings, stage, queue) if job.alive]
        new = [job for job in found if job not in known]
        return new[-1] if new else self._batch(stage).submit(after)

    def _batch(self, stage: ChainStage) -> BatchScript:
        own = (
            f"--job-name={stage.job_name(self.settings)}",
            f"--comment={stage.comment(self.settings)}",
            f"--output={stage.log(self.settings, '%j')}",
        )
        environment = {
            **self.environment,
            "LOCOST_ROOT": str(self.settings.root),
            "LOCOST_COMMIT": self.commit,
            "LOCOST_SUBMISSION": self.submission,
        }
        return BatchScript(
            stage.script(self.settings), stage.arguments, stage.flags(self.settings), own,
            self.settings.root, environment,
        )  # fmt: skip

    def _test(self, stage: ChainStage) -> tuple[str, str]:
        """(sbatch's words on when and where it could start, why it is refused), one is empty."""
        try:
            said = self._batch(stage).test()
        except ValueError as error:
            return "", str(error)
        return " ".join(re.sub(r"^sbatch: (Job \d+ to start at )?", "", said).split()), ""

    def _check(self, stage: ChainStage, ready: bool) -> str:
        """The script's error message about its arguments and inputs; empty if they pass."""
        done = subprocess.run(
            ["bash", str(stage.script(self.settings)), *stage.arguments,
             "--dry_run" if ready else "--check_arguments"],
            cwd=self.settings.root, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env={**self.environment, "LOCOST_ROOT": str(self.settings.root)}, errors="replace",
        )  # fmt: skip
        if done.returncode == 0:
            return ""
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        said = [line for line in lines if line.startswith("error: ")] or lines[-1:]
        return " ".join(line.removeprefix("error: ") for line in said) or (
            f"its check ended with status {done.returncode}"
        )


def cancel_jobs(
    settings: ChainSettings, stages: list[ChainStage], queue: list[SlurmJob]
) -> Iterator[str]:
    """Cancel all jobs of the chain, a line for each; the last first, so that none starts."""
    for stage in reversed(stages):
        for job in reversed(jobs_of(settings, stage, queue)):
            if job.alive:
                slurm_commands.cancel(job)
                yield f"{stage.name}: job {job.id} cancelled"
