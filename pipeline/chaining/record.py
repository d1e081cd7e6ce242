"""Which jobs were submitted for which stage: chain.json in the folder of runs."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from pipeline.chaining.settings import Settings
from pipeline.chaining.slurm import Job
from pipeline.chaining.stages import Stage
from pipeline.files import replace_json


@dataclass(frozen=True)
class Submission:
    """A job, the pattern of its logs, and when it was submitted."""

    job: int
    log: str
    submitted: str


class Record:
    """All submissions of a chain, oldest first; on disk after each."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError where the file is not a record."""
        self.settings, self.path = settings, settings.runs / "chain.json"
        self._of: dict[str, list[Submission]] = {}
        if not self.path.is_file():
            return
        try:
            content = json.loads(self.path.read_bytes())
            for name, entries in content.items():
                self._of[name] = [Submission(**entry) for entry in entries]
        except (ValueError, TypeError, AttributeError):
            raise ValueError(
                f"{self.path} is damaged; when none of its jobs is in the queue, delete it"
            ) from None

    def of(self, stage: Stage) -> list[Submission]:
        """A stage's submissions, the latest last."""
        return self._of.get(stage.name, [])

    def add(self, stage: Stage, job: int) -> None:
        """Note a job of the stage; on disk when this returns."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        new = Submission(job, stage.log(self.settings), now)
        self._of.setdefault(stage.name, []).append(new)
        self._write()

    def adopt(self, stages: list[Stage], queue: dict[int, Job]) -> None:
        """Note jobs of ours that were submitted, but not noted: the chain was interrupted there."""
        for stage in stages:
            noted = {entry.job for entry in self.of(stage)}
            for job in self.jobs(stage, queue):
                if job.id not in noted:
                    self.add(stage, job.id)

    def jobs(self, stage: Stage, queue: dict[int, Job]) -> list[Job]:
        """The stage's jobs among those of the queue, by id; noted or bearing its comment.

        A noted id whose job has another name is a stranger's: ids begin anew on some clusters.
        """
        noted = {entry.job for entry in self.of(stage)}
        comment = stage.comment(self.settings)
        return [
            job
            for _, job in sorted(queue.items())
            if job.name == stage.job_name and (job.id in noted or job.comment == comment)
        ]

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {name: [asdict(e) for e in entries] for name, entries in self._of.items()}
        replace_json(self.path, content)


def log_files(submission: Submission, task: int | None) -> list[Path]:
    """The logs that a submission's pattern names, of one array task or (None) of any."""
    path = Path(submission.log)
    name = path.name.replace("%j", str(submission.job)).replace("%A", str(submission.job))
    return sorted(path.parent.glob(name.replace("%a", "*" if task is None else str(task))))
