"""Checkpoints: written under a temporary tag by all processes, complete or not there.

    RUN/checkpoints/step-00001000/     DeepSpeed's state of every process
                                model/ what everybody else reads (config, weights, tokenizer)
                                COMPLETE  step, file sizes, and what a resumed run must agree on
    RUN/checkpoints/latest             the newest complete tag, written last
    RUN/last, RUN/best                 links to two of them

DeepSpeed's own files are pickles. They are read only from the run's own folder, on resume.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch

from pipeline.distributed import World
from pipeline.files import hold_lock, replace_json, replace_link, replace_text
from pipeline.model import Locost, save_model

COMPLETE = "COMPLETE"


class Checkpoints:
    """The checkpoints of one run folder.

    `identity` holds what decides the sample order and the state's layout (seed, batch size,
    dataset, number of processes, ZeRO stage): a folder whose newest checkpoint is of another
    identity is refused with ValueError, and so is one that another process writes to.
    """

    def __init__(
        self, run: Path, world: World, tokenizer: Path, identity: dict[str, Any], keep: int
    ) -> None:
        self.run, self.folder = run, run / "checkpoints"
        self.world, self.tokenizer, self.identity, self.keep = world, tokenizer, identity, keep
        problem = self._claim() if world.is_main else None
        if problem := world.broadcast(problem):
            raise ValueError(problem)
        self.marker = world.broadcast(self._newest() if world.is_main else None)
        if self.marker:
            self._compare(self.marker)

    @property
    def steps_done(self) -> int:
        """Updates that the newest complete checkpoint holds; 0 without one."""
        return self.marker["step"] if self.marker else 0

    def save(self, engine: deepspeed.DeepSpeedEngine, step: int, progress: dict[str, Any]) -> None:
        """Save after `step` updates; every process calls it. `progress` comes back from `resume`.

        The links, and which old checkpoints go, follow `progress["best"]["step"]`.
        """
        final = self.folder / f"step-{step:08d}"
        temporary = final.with_name(final.name + ".tmp")
        if self.world.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        self.world.barrier()
        engine.save_checkpoint(str(self.folder), tag=temporary.name, save_latest=False)
        self._save_model(engine, temporary / "model")
        self.world.barrier()
        if self.world.is_main:
            marker = {
                "step": step,
                "progress": progress,
                "identity": self.identity,
                "files": file_sizes(temporary),
            }
            replace_json(temporary / COMPLETE, marker)
            shutil.rmtree(final, ignore_errors=True)  # only ever an incomplete one
            temporary.replace(final)
            fsync_folder(self.folder)
            self._point_at(final.name, progress)
        self.world.barrier()

    def resume(self, engine: deepspeed.DeepSpeedEngine) -> tuple[int, dict[str, Any]]:
        """Load the newest complete checkpoint; (updates done, progress), or (0, {}) without one."""
        if self.marker is None:
            return 0, {}
        tag = f"step-{self.marker['step']:08d}"
        engine.load_checkpoint(str(self.folder), tag=tag)
        if self.world.is_main:
            self._point_at(tag, self.marker["progress"])
        return self.marker["step"], self.marker["progress"]

    def _claim(self) -> str | None:
        """Create the folder and lock the run while this process lives; else say why not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = hold_lock(self.run / ".lock")
        if self.lock is None:
            return (
                f"output {self.run}: another process trains in this folder; wait for it to end, or "
                "give another --output"
            )
        return None

    def _compare(self, marker: dict[str, Any]) -> None:
        differences = [
            f"{name}: checkpoint {marker['identity'].get(name)}, now {value}"
            for name, value in self.identity.items()
            if marker["identity"].get(name) != value
        ]
        if differences:
            raise ValueError(
                f"output {self.run} holds a different run ({'; '.join(differences)}); give the "
                "same settings to go on with it, or another --output to start anew"
            )

    def _newest(self) -> dict[str, Any] | None:
        for folder in sorted(self.folder.glob("step-*[0-9]"), reverse=True):
            marker = read_marker(folder)
            if marker is not None:
                return marker
            print(f"{folder} is incomplete; looking for an older one", file=sys.stderr)
        return None

    def _point_at(self, tag: str, progress: dict[str, Any]) -> None:
        """Name the newest and the best checkpoint, then drop what is no longer kept."""
        replace_text(self.folder / "latest", tag)
        replace_link(self.run / "last", f"checkpoints/{tag}")
        tags = sorted(folder.name for folder in self.folder.glob("step-*[0-9]"))
        kept = set(tags[-self.keep :])
        if "best" in progress:
            best = f"step-{progress['best']['step']:08d}"
            replace_link(self.run / "best", f"checkpoints/{best}")
            kept.add(best)
        for old in set(tags) - kept:
            # Renamed first: a half-deleted folder must not look like a checkpoint.
            dropped = (self.folder / old).rename(self.folder / f"{old}.dropped")
            shutil.rmtree(dropped, ignore_errors=True)

    def _save_model(self, engine: deepspeed.DeepSpeedEngine, folder: Path) -> None:
        model: Locost = engine.module
        partitioned = engine.zero_optimization_stage() == 3
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=partitioned):
            if self.world.is_main:
                save_model(model, folder, tokenizer=self.tokenizer)


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The COMPLETE marker, or None where it is missing or a file is not of the size it names."""
    try:
        marker = json.loads((folder / COMPLETE).read_text())
        if all((folder / name).stat().st_size == size for name, size in marker["files"].items()):
            return marker
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file under `folder`, by relative path; each is flushed to disk first."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[str(path.relative_to(folder))] = path.stat().st_size
    return sizes


def fsync_folder(folder: Path) -> None:
    """Flush the folder's entries, so that a rename outlasts a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def assert_exact_parameters(model: torch.nn.Module) -> None:
    """Every parameter is fp32 and real: DeepSpeed casts or drops others without a word."""
    wrong = [
        f"{name} ({parameter.dtype})"
        for name, parameter in model.named_parameters()
        if parameter.dtype != torch.float32
    ]
    if wrong:
        raise AssertionError(f"parameters not in fp32 after initialisation: {', '.join(wrong)}")
