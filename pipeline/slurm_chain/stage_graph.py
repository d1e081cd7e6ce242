"""The chain's stages: what each depends on, its job script, and the files that mark it complete."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.slurm_chain.chain_settings import ChainSettings


@dataclass(frozen=True)
class ChainStage:
    """A job script that needs the results of the stages in `needs`.

    `markers`: the files whose existence means complete. `parallel`: jobs that share its work.
    `summary`: a page of all results so far, which runs whatever is missing, and again when a stage
    in `needs` has completed after it.
    """

    name: str
    kind: str
    argument: str | None
    needs: tuple[str, ...]
    markers: tuple[Path, ...]
    parallel: int = 1
    summary: bool = False

    def job_name(self, settings: ChainSettings) -> str:
        """The job name in the queue."""
        return f"{settings.name}-{self.name}"

    def links(self, settings: ChainSettings) -> int:
        """The jobs one after another, each of which resumes where the last one stopped."""
        return 1 if self.summary else settings.links

    def script(self, settings: ChainSettings) -> Path:
        """The path of the job script."""
        return settings.root / "slurm" / f"{self.kind}.sh"

    def comment(self, settings: ChainSettings) -> str:
        """The job comment, which tells its jobs from those of other chains."""
        return f"locost:{settings.runs}:{self.name}"

    def log(self, settings: ChainSettings, job: str) -> Path:
        """The log of a job; %j for Slurm's pattern, * for all."""
        return settings.runs / "logs" / f"{self.job_name(settings)}-{job}.log"


def stage_graph(settings: ChainSettings) -> list[ChainStage]:
    """All stages, in an order in which each comes after those it needs."""

    def shards(name: str, *splits: str) -> tuple[Path, ...]:
        return tuple(settings.shards / f"{name}-{split}" / "manifest.json" for split in splits)

    runs, sets = settings.runs, settings.sets
    text = [
        ChainStage(
            "preprocess-c4",
            "preprocess",
            "pretrain",
            (),
            shards("c4", "train", "validation"),
            parallel=settings.preprocess_jobs,
        ),
        *(
            ChainStage(
                f"preprocess-{name}",
                "preprocess",
                name,
                (),
                shards(name, "train", "validation", "test"),
            )
            for name in sets
        ),
    ]
    pretrain = ChainStage(
        "pretrain", "pretrain", None, ("preprocess-c4",), (runs / "pretrain" / "FINISHED",)
    )
    finetune = [
        ChainStage(
            f"finetune-{name}",
            "finetune",
            name,
            ("pretrain", f"preprocess-{name}"),
            (runs / f"finetune-{name}" / "FINISHED",),
        )
        for name in sets
    ]
    evaluate = [
        ChainStage(
            f"evaluate-{name}",
            "evaluate",
            name,
            (f"finetune-{name}",),
            (runs / f"evaluation-{name}" / "results.json",),
        )
        for name in sets
    ]
    report = ChainStage(
        "report",
        "report",
        None,
        tuple(stage.name for stage in evaluate),
        (runs / "report" / "report.md",),
        summary=True,
    )
    return [*text, pretrain, *finetune, *evaluate, report]


def completion_times(stages: list[ChainStage]) -> dict[str, float]:
    """When each complete stage was completed: the time of its oldest marker, unix seconds."""
    times: dict[str, float] = {}
    for stage in stages:
        made = [_made(marker) for marker in stage.markers]
        if all(made):
            times[stage.name] = min(time for time in made if time)
    return times


def stale_stages(stages: list[ChainStage], times: Mapping[str, float]) -> dict[str, str]:
    """Complete stages whose results are outdated, with the reason.

    A stage that it needs was completed later, or is itself outdated; a summary is outdated too
    while something is missing.
    """
    stale: dict[str, str] = {}
    for stage in stages:
        if stage.name not in times:
            continue
        for need in stage.needs:
            if need in stale:
                stale[stage.name] = f"{need} is stale"
            elif times.get(need, 0.0) > times[stage.name]:
                stale[stage.name] = f"older than {need}"
            elif need not in times and stage.summary:
                stale[stage.name] = f"without {need}"
            if stage.name in stale:
                break
    return stale


def _made(marker: Path) -> float | None:
    """When a marker was written; None if it is missing or is malformed JSON."""
    try:
        if marker.suffix == ".json":
            json.loads(marker.read_bytes())
        return marker.stat().st_mtime
    except (OSError, ValueError):
        return None
