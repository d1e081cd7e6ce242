"""The stages of the paper's run as data: what each needs, submits, and leaves when complete."""

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.chaining.settings import Settings


@dataclass(frozen=True)
class Stage:
    """One step of the road: a script, submitted once every stage in `needs` has ended well.

    `markers` are the files whose existence means complete; `array` its array tasks, 0 for a plain
    job; `summary` that it is made again when what it needs was made after it.
    """

    name: str
    kind: str
    argument: str | None
    needs: tuple[str, ...]
    markers: tuple[Path, ...]
    array: int = 0
    summary: bool = False

    @property
    def job_name(self) -> str:
        """Its name in the queue."""
        return f"locost-{self.name}"

    def script(self, settings: Settings) -> Path:
        """Its job script."""
        return settings.root / "slurm" / f"{self.kind}.sh"

    def comment(self, settings: Settings) -> str:
        """What tells its jobs from those of other chains, in the queue."""
        return f"locost:{settings.runs}:{self.name}"

    def log(self, settings: Settings) -> str:
        """Where its jobs write, as a pattern of Slurm's: %j is the job, %A_%a the array's task."""
        job = "%A_%a" if self.array else "%j"
        return f"{settings.runs}/logs/{self.job_name}-{job}.log"


def graph(settings: Settings) -> list[Stage]:
    """All stages, each after those it needs."""

    def shards(name: str, *splits: str) -> tuple[Path, ...]:
        return tuple(settings.shards / f"{name}-{split}" / "manifest.json" for split in splits)

    runs, sets = settings.runs, settings.sets
    return [
        Stage("preprocess-c4", "preprocess", "pretrain", (), shards("c4", "train", "validation"),
              array=settings.preprocess_jobs),
        *(Stage(f"preprocess-{name}", "preprocess", name, (),
                shards(name, "train", "validation", "test"), array=1)
          for name in sets),
        Stage("pretrain", "pretrain", None, ("preprocess-c4",), (runs / "pretrain" / "FINISHED",)),
        *(Stage(f"finetune-{name}", "finetune", name, ("pretrain", f"preprocess-{name}"),
                (runs / f"finetune-{name}" / "FINISHED",))
          for name in sets),
        *(Stage(f"evaluate-{name}", "evaluate", name, (f"finetune-{name}",),
                (runs / f"evaluation-{name}" / "results.json",))
          for name in sets),
        Stage("report", "report", None, tuple(f"evaluate-{name}" for name in sets),
              (runs / "report" / "report.md",), summary=True),
    ]  # fmt: skip


def completed(stages: list[Stage]) -> set[str]:
    """Names of the stages whose markers are all there, as the folders say now."""
    times: dict[str, float] = {}
    for stage in stages:
        made = [_made(marker) for marker in stage.markers]
        if None in made:
            continue
        oldest = min(time for time in made if time is not None)
        if stage.summary and not all(
            need in times and times[need] <= oldest for need in stage.needs
        ):
            continue
        times[stage.name] = oldest
    return set(times)


def _made(marker: Path) -> float | None:
    """When a marker was written; None if it is not there, or is JSON that cannot be read."""
    try:
        if marker.suffix == ".json":
            json.loads(marker.read_bytes())
        return marker.stat().st_mtime
    except (OSError, ValueError):
        return None
