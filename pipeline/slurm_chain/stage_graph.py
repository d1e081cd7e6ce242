"""The chain's stages: what each depends on, its job script, and the files that mark it complete."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.slurm_chain.chain_settings import KINDS, LOCOST, ChainSettings, ChainSystem

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class ChainStage:
    """A job script, with its arguments, that needs the results of the stages in `needs`.

    `markers`: the files whose existence means complete. `result`: what it gives the report, and
    of which set; that says which tables and figures it feeds. `parallel`: jobs that share its
    work. `resources`: the kind of stage whose flags of sbatch it has, if not its own. `summary`: a
    page of all results so far, which runs whatever is missing, and again when a stage in `needs`
    has completed after it.
    """

    name: str
    kind: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    markers: tuple[Path, ...]
    result: tuple[str, str] = ("", "")
    parallel: int = 1
    resources: str = ""
    summary: bool = False

    def job_name(self, settings: ChainSettings) -> str:
        """The job name in the queue."""
        return f"{settings.name}-{self.name}"

    def flags(self, settings: ChainSettings) -> tuple[str, ...]:
        """The options of sbatch that the settings give it."""
        return settings.flags[self.resources or self.kind]

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
    """All stages, in an order in which each comes after those it needs.

    The job scripts call a model SET, SET:SYSTEM for a baseline, SET@TOKENS where it is trained on
    that many tokens; behind it +TOKENS is an evaluation that reads that many.
    """
    pretrain = ChainStage(
        "pretrain", "pretrain", (), ("preprocess-c4",),
        (settings.runs / "pretrain" / "FINISHED",), ("pretrain", ""),
    )  # fmt: skip
    stages = [*(_shards(settings, name) for name in ("c4", *settings.sets)), pretrain]
    for system in settings.systems:
        for name in system.sets:
            stages += _of_set(settings, system, name)
    stages += _measures(settings, [stage for stage in stages if stage.kind == "evaluate"])
    results = [stage.name for stage in stages if stage.kind in ("evaluate", "measure")]
    page = settings.runs / "report" / "report.md"
    report = ChainStage("report", "report", (), tuple(results), (page,), summary=True)
    return [*sorted(stages, key=lambda stage: KINDS.index(stage.kind)), report]


def _shards(settings: ChainSettings, name: str) -> ChainStage:
    """The shards of C4 or of a set."""
    c4 = name == "c4"
    splits = ("train", "validation") if c4 else ("train", "validation", "test")
    return ChainStage(
        f"preprocess-{name}", "preprocess", ("pretrain" if c4 else name,), (),
        tuple(settings.shards / f"{name}-{split}" / MANIFEST for split in splits), ("data", name),
        parallel=settings.preprocess_jobs if c4 else 1,
    )  # fmt: skip


def _of_set(settings: ChainSettings, system: ChainSystem, name: str) -> Iterator[ChainStage]:
    """A system on a set: retokenised shards, fine-tunings and evaluations, at several lengths."""
    runs, model, data = settings.runs, system.on(name), f"preprocess-{name}"
    if system.own_tokenizer:
        yield ChainStage(
            data := f"preprocess-{_file(model)}", "preprocess", (model,), (f"preprocess-{name}",),
            tuple(settings.shards / f"{name}-{split}-{system.name}" / MANIFEST
                  for split in ("train", "validation", "test")),
        )  # fmt: skip
    needs = (data,) if system.name != LOCOST else ("pretrain", data)
    books, arxiv = (name == special for special in ("booksum_book", "arxiv"))
    contexts = [f"{model}@{tokens}" for tokens in system.contexts if books]
    for trained in (model, *contexts):
        run = f"finetune-{_file(trained)}"
        shown = ("finetune", "") if trained == name else ("", "")
        yield ChainStage(run, "finetune", (trained,), needs, (runs / run / "FINISHED",), shown)
        kind = "context" if contexts else "evaluation"
        longer = [f"{trained}+{tokens}" for tokens in system.extrapolate if arxiv]
        for read in (trained, *longer):
            yield ChainStage(
                f"evaluate-{_file(read)}", "evaluate", (read,), (run,),
                (runs / f"evaluation-{_file(read)}" / "results.json",),
                ("extrapolation" if read in longer else kind, name),
            )  # fmt: skip


def _measures(settings: ChainSettings, evaluations: list[ChainStage]) -> Iterator[ChainStage]:
    """Other metrics of the evaluations, throughput and memory, kernels."""
    for metric in ("bert_score", "blanc", "judge"):
        sets = settings.judge_sets if metric == "judge" else settings.metric_sets
        for stage in evaluations if metric in settings.measures else ():
            if stage.result[0] == "evaluation" and stage.result[1] in sets:
                yield ChainStage(
                    stage.name.replace("evaluate", metric, 1), "measure",
                    (metric, *stage.arguments), (stage.name,),
                    (stage.markers[0].with_name(f"FINISHED-{metric}"),), (metric, stage.result[1]),
                    resources="report" if metric == "judge" else "",
                )  # fmt: skip
    runs = settings.runs
    if "systems" in settings.measures:
        yield ChainStage("systems", "measure", ("systems",), (),
                         (runs / "systems" / "FINISHED",), ("systems", ""))  # fmt: skip
    if "kernels" in settings.measures:
        yield ChainStage("kernels", "measure", ("kernels",), ("pretrain",),
                         (runs / "kernels" / "FINISHED",), ("kernels", ""),
                         resources="report")  # fmt: skip


def _file(model: str) -> str:
    """A model's name in the names of files and jobs."""
    return model.replace(":", "-")


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
