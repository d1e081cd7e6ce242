"""Submitting what is missing, after a look at whether it can run at all."""

import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.chaining import slurm
from pipeline.chaining.plan import Step
from pipeline.chaining.record import Record
from pipeline.chaining.settings import Settings
from pipeline.chaining.stages import Stage, completed

CHECKS_AT_ONCE = 4


@dataclass(frozen=True)
class Fault:
    """What is wrong with a stage; `passing` faults do not keep it out of the queue."""

    stage: Stage
    text: str
    passing: bool = False


def faults(settings: Settings, steps: list[Step], environment: Mapping[str, str]) -> list[Fault]:
    """What would be submitted in vain.

    Slurm is asked of each job whether it would take it; the script of each stage whose inputs are
    there, by its --dry_run, whether they will do.
    """
    complete = {step.stage.name for step in steps if step.complete}
    wanted = [step.stage for step in steps if step.lacking]

    def look(stage: Stage) -> Iterator[Fault]:
        refused = _batch(settings, stage, environment).refusal()
        if refused:
            yield Fault(stage, refused, slurm.is_passing(refused))
        if complete.issuperset(stage.needs):
            failing = _dry_run(settings, stage, environment)
            if failing:
                yield Fault(stage, failing)

    with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
        return [fault for found in pool.map(lambda stage: list(look(stage)), wanted)
                for fault in found]  # fmt: skip


def _batch(settings: Settings, stage: Stage, environment: Mapping[str, str]) -> slurm.Batch:
    return slurm.Batch(
        stage.script(settings),
        stage.argument,
        stage.job_name,
        stage.array,
        settings.flags[stage.kind],
        settings.root,
        environment,
    )


def _dry_run(settings: Settings, stage: Stage, environment: Mapping[str, str]) -> str | None:
    """What a script says is wrong with its inputs; None if nothing."""
    command = ["bash", str(stage.script(settings)), *([stage.argument] if stage.argument else [])]
    done = subprocess.run(
        [*command, "--dry_run"], cwd=settings.root, env=dict(environment), text=True,
        stdin=subprocess.DEVNULL, capture_output=True, errors="replace",
    )  # fmt: skip
    if done.returncode == 0:
        return None
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    said = [line for line in lines if line.startswith("error: ")] or lines[-1:]
    return " ".join(line.removeprefix("error: ") for line in said) or (
        f"--dry_run ended with status {done.returncode}"
    )


def cancel_replaced(steps: list[Step]) -> Iterator[str]:
    """Cancel the jobs that wait for jobs which are no more; a line for each."""
    for step in reversed(steps):
        for job in step.replaced:
            slurm.cancel(job)
            yield f"{step.stage.name}: job {job.id} waited in vain, cancelled"


def submit(
    settings: Settings,
    steps: list[Step],
    record: Record,
    environment: Mapping[str, str],
) -> Iterator[str]:
    """Submit what is lacking, each job noted at once; a line for each.

    Raises ValueError where sbatch fails or a job that others wait for has ended meanwhile; what
    was submitted so far stays.
    """
    (settings.runs / "logs").mkdir(parents=True, exist_ok=True)
    stages = [step.stage for step in steps]
    last = {step.stage.name: step.kept[-1].id for step in steps if step.kept}
    for step in steps:
        stage = step.stage
        for _ in range(step.lacking):
            names = (stage.name,) if stage.name in last else stage.needs  # the link before it
            try:
                after = _awaited(stages, {name: last[name] for name in names if name in last})
                job_id = _batch(settings, stage, environment).submit(
                    comment=stage.comment(settings), log=stage.log(settings), after=after
                )
            except ValueError as error:
                raise ValueError(f"{stage.name}: {error}") from None
            last[stage.name] = job_id
            record.add(stage, job_id)
            yield f"{stage.name}: job {job_id}" + (f", after {', '.join(after)}" if after else "")


def _awaited(stages: list[Stage], waits_for: dict[str, int]) -> list[str]:
    """Ids for `afterok:`, each known to the controller now: one that is not would be ignored.

    A job that the controller has forgotten is judged by its stage's markers. Raises ValueError
    where one has ended without completing its stage.
    """
    if not waits_for:
        return []
    queue, done, ids = slurm.queue(), completed(stages), []
    for name, job_id in waits_for.items():
        if name in done:
            continue
        if job_id not in queue:
            raise ValueError(f"job {job_id} ({name}) left the queue and did not complete")
        ids += queue[job_id].awaited()
    return ids
