"""The progress of a stage, from the files that its programs write while they run."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.common.files import read_object
from pipeline.slurm_chain.formatting import duration
from pipeline.slurm_chain.stage_graph import ChainStage

SILENT_SECONDS = 600.0


@dataclass(frozen=True)
class StageProgress:
    """A description, and the seconds left if they can be estimated."""

    text: str = ""
    seconds_left: float | None = None


def stage_progress(stage: ChainStage, since: float | None, now: float) -> StageProgress:
    """A stage's progress; `since`: when its running job started (unix seconds), or None."""
    folders = [marker.parent for marker in stage.markers]
    if stage.kind == "preprocess":
        return _shards(folders, since, now)
    if stage.kind in ("pretrain", "finetune"):
        return _training(folders[0], since, now)
    if stage.kind == "evaluate":
        return _evaluation(folders[0], since, now)
    return StageProgress()


def _training(run: Path, since: float | None, now: float) -> StageProgress:
    """From heartbeat.json, which rank 0 writes."""
    beat = read_object(run / "heartbeat.json")
    if not _numbers(beat, "step", "max_steps", "time"):
        silent = "" if since is None else _silence(now - since, "starting")
        return StageProgress(silent)
    step, steps = beat["step"], beat["max_steps"]
    text = f"step {step:,} of {steps:,}"
    if _numbers(beat, "loss"):
        text += f", loss {beat['loss']:.4g}"
    if since is None:
        return StageProgress(text)
    if beat["time"] < since:  # by an earlier job, or by this one before its requeue
        return StageProgress(f"{text}, {_silence(now - since, 'starting')}")
    left = None
    if _numbers(beat, "seconds_per_step"):
        left = (steps - step) * beat["seconds_per_step"]
    ago = now - beat["time"]
    return StageProgress(f"{text}, {_silence(ago, f'last heartbeat {duration(ago)} ago')}", left)


def _silence(seconds: float, otherwise: str) -> str:
    """`otherwise`, or a warning after a long silence."""
    if seconds <= SILENT_SECONDS:
        return otherwise
    return f"NO HEARTBEAT for {duration(seconds)}"


def _shards(folders: list[Path], since: float | None, now: float) -> StageProgress:
    """From the markers of finished items, in the first incomplete folder."""
    for folder in folders:
        if (folder / "manifest.json").is_file():
            continue
        items = folder / ".items"
        made = [_mtime(path) for path in items.glob("[0-9]*.json")]
        inputs = read_object(items / "settings.json").get("inputs")
        if not isinstance(inputs, list):
            return StageProgress()
        hashed = len(list(items.glob("hashes/[0-9]*.npy")))
        if hashed and not made:
            return StageProgress(f"{folder.name}: {hashed:,} items searched for duplicates")
        # A compressed file is one item; a large plain one is split into several.
        total = len(inputs) if all(".gz," in str(text) for text in inputs) else None
        text = f"{folder.name}: {len(made):,}{f' of {total:,}' if total else ''} items"
        left = None
        if total and since is not None:
            left = _left(sum(time >= since for time in made), total - len(made), now - since)
        return StageProgress(text, left)
    return StageProgress()


def _evaluation(folder: Path, since: float | None, now: float) -> StageProgress:
    """From the number of summaries written so far."""
    settings = read_object(folder / "settings.json").get("dataset")
    total = settings.get("examples") if isinstance(settings, dict) else None
    if not isinstance(total, int):
        return StageProgress()
    if (folder / "predictions-model.jsonl").is_file():
        return StageProgress(f"{total:,} of {total:,} summaries")
    done = sum(
        path.read_bytes().count(b"\n") for path in folder.glob("predictions-model.part-*.jsonl")
    )
    left = _left(done, total - done, now - since) if since is not None else None
    return StageProgress(f"{done:,} of {total:,} summaries", left)


def _left(done: int, missing: int, seconds: float) -> float | None:
    """The seconds that the missing items take at the rate so far."""
    return missing * seconds / done if done > 0 else None


def _numbers(content: dict[str, Any], *names: str) -> bool:
    values = [content.get(name) for name in names]
    return all(isinstance(v, (int, float)) and math.isfinite(v) for v in values)


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
