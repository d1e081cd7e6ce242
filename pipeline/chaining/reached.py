"""How far a stage has come, from what its programs leave on disk while they work."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.chaining.settings import Settings
from pipeline.chaining.stages import Stage
from pipeline.chaining.text import duration

SILENT_SECONDS = 600.0


@dataclass(frozen=True)
class Reached:
    """A description, and the seconds left where they can be told."""

    text: str = ""
    seconds_left: float | None = None


def reached(stage: Stage, since: float | None, now: float) -> Reached:
    """What a stage has reached; `since`: when its job began (unix seconds), None: none runs."""
    folders = [marker.parent for marker in stage.markers]
    if stage.kind == "preprocess":
        return _shards(folders, since, now)
    if stage.kind in ("pretrain", "finetune"):
        return _training(folders[0], since, now)
    if stage.kind == "evaluate":
        return _evaluation(folders[0], since, now)
    return Reached()


def share_left(settings: Settings) -> float:
    """The share of the pre-training's steps that is still to be made."""
    beat = _json(settings.runs / "pretrain" / "heartbeat.json")
    if not _numbers(beat, "step", "max_steps") or beat["max_steps"] <= 0:
        return 1.0
    return min(max(1 - beat["step"] / beat["max_steps"], 0.0), 1.0)


def _training(run: Path, since: float | None, now: float) -> Reached:
    """From the heartbeat of the run's first process."""
    beat = _json(run / "heartbeat.json")
    if not _numbers(beat, "step", "max_steps", "time"):
        silent = "" if since is None else _silence(now - since, "starting")
        return Reached(silent)
    step, steps = beat["step"], beat["max_steps"]
    text = f"step {step:,} of {steps:,}"
    if _numbers(beat, "loss"):
        text += f", loss {beat['loss']:.4g}"
    if since is None:
        return Reached(text)
    if beat["time"] < since:  # of the job before, or of this one before it was requeued
        return Reached(f"{text}, {_silence(now - since, 'starting')}")
    left = None
    if _numbers(beat, "seconds_per_step"):
        left = (steps - step) * beat["seconds_per_step"]
    ago = now - beat["time"]
    return Reached(f"{text}, {_silence(ago, f'last sign of life {duration(ago)} ago')}", left)


def _silence(seconds: float, otherwise: str) -> str:
    if seconds <= SILENT_SECONDS:
        return otherwise
    return f"NO SIGN OF LIFE for {duration(seconds)}"


def _shards(folders: list[Path], since: float | None, now: float) -> Reached:
    """From the markers of finished items; of the first folder that is not complete."""
    for folder in folders:
        if (folder / "manifest.json").is_file():
            continue
        items = folder / ".items"
        made = [_mtime(path) for path in items.glob("[0-9]*.json")]
        inputs = _json(items / "settings.json").get("inputs")
        if not isinstance(inputs, list):
            return Reached()
        hashed = len(list(items.glob("hashes/[0-9]*.npy")))
        if hashed and not made:
            return Reached(f"{folder.name}: {hashed:,} items searched for duplicates")
        # A compressed file is one item; a large plain one is several.
        total = len(inputs) if all(".gz," in str(text) for text in inputs) else None
        text = f"{folder.name}: {len(made):,}{f' of {total:,}' if total else ''} items"
        left = None
        if total and since is not None:
            left = _left(sum(time >= since for time in made), total - len(made), now - since)
        return Reached(text, left)
    return Reached()


def _evaluation(folder: Path, since: float | None, now: float) -> Reached:
    """From the summaries written so far."""
    settings = _json(folder / "settings.json").get("dataset")
    total = settings.get("examples") if isinstance(settings, dict) else None
    if not isinstance(total, int):
        return Reached()
    if (folder / "predictions-model.jsonl").is_file():
        return Reached(f"{total:,} of {total:,} summaries")
    done = sum(
        path.read_bytes().count(b"\n") for path in folder.glob("predictions-model.part-*.jsonl")
    )
    left = _left(done, total - done, now - since) if since is not None else None
    return Reached(f"{done:,} of {total:,} summaries", left)


def _left(done: int, missing: int, seconds: float) -> float | None:
    """Time for what is missing, at the rate so far."""
    return missing * seconds / done if done > 0 else None


def _json(path: Path) -> dict[str, Any]:
    """A file's object; empty where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _numbers(content: dict[str, Any], *names: str) -> bool:
    values = [content.get(name) for name in names]
    return all(isinstance(v, (int, float)) and math.isfinite(v) for v in values)


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
