"""Checkpoints: written by all ranks under a temporary name, so one is complete or absent.

    RUN/checkpoints/step-00001000/
        model/       weights, config.json, tokenizer: a model folder like any other
        optimizer/   AdamW's moments, one file per rank
        COMPLETE     step, progress, size and CRC-32 of every file, identity and settings of the run
    RUN/checkpoints/latest   the name of the newest complete one, written last
    RUN/last, RUN/best       links to two of them

Weights and moments are fp32 and are copied, never computed: on the same number of processes a run
resumes bit for bit. The files depend neither on the number of processes nor on the ZeRO stage
(optimizer_state.py says why they are not DeepSpeed's), so a run resumes under others too, equal to
rounding.

Each rank computes the CRC of what it writes; before a run resumes, all ranks together check them,
so wrong bytes in a file of the right size are found. At 234M parameters a checkpoint has 2.8 GB: a
third is weights, written by rank 0, the rest is divided among the ranks. On one process and one
disk saving took 12 s, loading 1.4 s, and the CRC of all of it 1.1 s (SHA-256 takes twice that).
"""

import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import deepspeed
from safetensors import SafetensorError

from pipeline.baselines.registry import Model, load_model, save_model
from pipeline.common.files import hold_lock, replace_json, replace_link, replace_text
from pipeline.common.settings import differences, flatten
from pipeline.distributed.world import RunFailed, World
from pipeline.training.callbacks.base import Callback
from pipeline.training.optimizer_state import load_moments, save_moments, updates_applied
from pipeline.training.rewind import set_aside

COMPLETE = "COMPLETE"
MODEL, OPTIMIZER = "model", "optimizer"
TAGS = "step-*[0-9]"
T = TypeVar("T")


class SaveFailed(RunFailed):
    """A checkpoint could not be written; the older ones are intact."""


class Checkpoints:
    """The checkpoints of one run folder; every method but `close` is a collective.

    `identity` is what decides sample order and result (dataset, seed, batch size, architecture,
    ...). ValueError where the newest checkpoint has another identity, another process writes to
    the folder, or all checkpoints are damaged. `settings` are the rest (processes, ZeRO stage,
    rates): changes are printed in one line. `keep` newest checkpoints stay, the best one, and those
    of every `keep_every` steps.
    """

    def __init__(
        self,
        run: Path,
        world: World,
        tokenizer: Path,
        identity: dict[str, Any],
        settings: dict[str, Any],
        keep: int,
        keep_every: int = 0,
    ) -> None:
        self.run, self.folder = run, run / "checkpoints"
        self.world, self.tokenizer, self.keep, self.keep_every = world, tokenizer, keep, keep_every
        self.identity, self.settings = as_stored(identity), as_stored(settings)
        problem = self._claim() if world.is_main else None
        if problem := world.broadcast(problem):
            raise ValueError(problem)
        try:
            self.marker = self._newest()
            if self.marker:
                self._compare(self.marker)
            self.rewinds: list[dict[str, Any]] = (self.marker or {}).get("rewinds", [])
        except BaseException:  # whose traceback would hold this object, and with it the lock
            self.close()
            raise

    @property
    def steps_done(self) -> int:
        """Updates that the newest complete checkpoint holds; 0 without one."""
        return self.marker["step"] if self.marker else 0

    def save(
        self,
        engine: deepspeed.DeepSpeedEngine,
        step: int,
        progress: dict[str, Any],
        callbacks: Sequence[Callback] = (),
    ) -> float:
        """Save after `step` updates; returns seconds. `resume` returns `progress`.

        The links, and which old checkpoints go, follow `progress["best"]["step"]`. Raises
        SaveFailed on every process if one could not write; what was there before is untouched.
        """
        began = time.perf_counter()
        final = self.folder / tag_of(step)
        temporary = final.with_name(final.name + ".tmp")
        self._together(temporary, lambda: self._clear(temporary))
        written = self._together(temporary, lambda: self._write(engine, temporary, callbacks))
        marker = {
            "step": step,
            "updates": updates_applied(engine),
            "progress": progress,
            "identity": self.identity,
            "settings": self.settings,
            "rewinds": self.rewinds,
            "files": {name: entry for files in written for name, entry in files.items()},
        }
        self._together(temporary, lambda: self._finish(temporary, final, marker, callbacks))
        self.marker = marker
        return time.perf_counter() - began

    def update_progress(self, progress: dict[str, Any]) -> None:
        """Give the newest checkpoint other `progress`, when a validation came after its save.

        Raises SaveFailed as `save` does.
        """
        assert self.marker
        if progress == self.marker["progress"]:
            return
        folder = self.folder / tag_of(self.steps_done)
        self.marker = marker = {**self.marker, "progress": progress}

        def write() -> None:
            if self.world.is_main:
                replace_json(folder / COMPLETE, marker)
                self._point_at(folder.name, progress)

        self._together(folder.with_name(folder.name + ".tmp"), write)

    def load_weights(self, model: Model) -> None:
        """Load the newest checkpoint's weights, before DeepSpeed partitions the model."""
        if self.marker:
            saved = load_model(self.folder / tag_of(self.steps_done) / MODEL)
            model.load_state_dict(saved.state_dict())

    def resume(self, engine: deepspeed.DeepSpeedEngine) -> tuple[int, dict[str, Any]]:
        """Load the newest complete checkpoint's moments into an engine that has its weights.

        (updates done, progress), or (0, {}) without a checkpoint.
        """
        if self.marker is None:
            return 0, {}
        tag = tag_of(self.steps_done)
        paths = [self.folder / tag / name for name in self.marker["files"]]
        moments = [path for path in paths if path.parent.name == OPTIMIZER]
        load_moments(engine, moments, self.marker["updates"], self.world.rank)
        if self.world.is_main:
            self._point_at(tag, self.marker["progress"])
            changes = differences(self.marker["settings"], self.settings)
            changed = f"; changed settings: {', '.join(changes)}" if changes else ""
            print(f"{self.run} resumes after step {self.steps_done}{changed}", flush=True)
        return self.marker["step"], self.marker["progress"]

    def rewind(self, wanted: dict[str, Any], dry_run: bool) -> None:
        """Make the checkpoint of `wanted["step"]` the newest; later ones are set aside.

        Not where the newest comes after the same rewind, which a restart must not repeat. Raises
        ValueError where that step is not kept.
        """
        if self.marker and wanted in self.rewinds:
            return
        step = wanted["step"]
        folders = sorted(self.folder.glob(TAGS)) if self.world.is_main else []
        kept = self.world.broadcast([int(path.name.removeprefix("step-")) for path in folders])
        if step not in kept:
            raise ValueError(
                f"train.resume_from is {step}, but {self.folder} keeps "
                f"{', '.join(map(str, kept)) or 'no checkpoint'}; give one of these steps "
                "(--train.keep_every keeps more)"
            )
        if dry_run:
            return
        later = [tag_of(number) for number in kept if number > step]

        def write() -> None:
            if later and self.world.is_main:
                aside = set_aside(self.run, later)
                print(
                    f"{self.run} goes back to step {step}; what came later is in {aside}, which "
                    "nothing reads: delete it when you no longer need it",
                    flush=True,
                )

        self.world.on_all(write, OSError)
        self.marker = self._newest()
        assert self.marker
        progress = self.marker["progress"]
        if "best" in progress and progress["best"]["step"] not in kept:  # a better one replaced it
            self.marker["progress"] = {k: v for k, v in progress.items() if k != "best"}
        self.rewinds = [*self.marker.get("rewinds", []), wanted]

    def close(self) -> None:
        """Release the folder for other runs, in this process too."""
        if self.world.is_main and self.lock is not None:
            self.lock.close()

    def leave_no_trace(self) -> None:
        """After a dry run: remove the folder if this run alone created what is in it."""
        if not self.world.is_main:
            return
        made = {self.run / ".lock", self.folder}
        if set(self.run.iterdir()) <= made and not any(self.folder.iterdir()):
            (self.run / ".lock").unlink()
            self.folder.rmdir()
            self.run.rmdir()

    def _claim(self) -> str | None:
        """Create the folder and lock it while this process lives; else return why not."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = hold_lock(self.run / ".lock")
        except OSError as error:
            return f"output {self.run}: {error.strerror}; fix it or give another --output"
        if self.lock is None:
            return (
                f"output {self.run}: another process trains in this folder; wait for it to end, or "
                "give another --output"
            )
        return None

    def _compare(self, marker: dict[str, Any]) -> None:
        if found := differences(marker["identity"], self.identity):
            raise ValueError(
                f"output {self.run} holds a different run ({'; '.join(found)}); "
                "give the same settings to resume it, or another --output to start a new one"
            )

    def _newest(self) -> dict[str, Any] | None:
        """The newest marker whose files are intact; each rank checks a part of them."""
        folders = sorted(self.folder.glob(TAGS), reverse=True) if self.world.is_main else []
        tags = self.world.broadcast([folder.name for folder in folders])
        for tag in tags:
            folder = self.folder / tag
            marker = self.world.broadcast(read_marker(folder) if self.world.is_main else None)
            files = list(marker["files"].items()) if marker else []
            mine = dict(files[self.world.rank :: self.world.size])
            faults = [fault for part in self.world.gather(damage(folder, mine)) for fault in part]
            if marker and not faults:
                return marker
            if self.world.is_main:
                fault = faults[0] if faults else f"no readable {COMPLETE}"
                print(
                    f"{folder} is incomplete ({fault}); looking for an older one", file=sys.stderr
                )
        if tags:
            raise ValueError(
                f"{self.folder} holds no intact checkpoint; restore the damaged file, or start "
                "a new run with another --output"
            )
        return None

    def _together(self, temporary: Path, action: Callable[[], T]) -> list[T]:
        """What `action` returns on each process; SaveFailed on all of them if it failed on one."""
        result, problems = self.world.attempt(action, OSError, SafetensorError)
        if problems:
            if self.world.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
            raise SaveFailed(
                f"no checkpoint could be written to {self.folder}: {problems[0]}; the older ones "
                "are intact: make room or fix the folder, then start the same command again"
            )
        return self.world.gather(result)

    def _clear(self, temporary: Path) -> None:
        """Create the folder, after removing what killed saves and deletions left behind."""
        if self.world.is_main:
            for left in (*self.folder.glob("step-*.tmp"), *self.folder.glob("step-*.dropped")):
                shutil.rmtree(left, ignore_errors=True)
            (temporary / OPTIMIZER).mkdir(parents=True)

    def _write(
        self, engine: deepspeed.DeepSpeedEngine, folder: Path, callbacks: Sequence[Callback]
    ) -> dict[str, list[int]]:
        """Write this process's files; their sums by relative name."""
        moments = folder / OPTIMIZER / f"{self.world.rank:05d}-of-{self.world.size:05d}.safetensors"
        moments.parent.mkdir(parents=True, exist_ok=True)  # another node may not see it yet
        save_moments(engine, moments, self.world.rank)
        for callback in callbacks:
            callback.on_moments_saved(moments)
        self._save_model(engine, folder / MODEL)
        model = sorted((folder / MODEL).iterdir()) if self.world.is_main else []
        return {str(path.relative_to(folder)): sums(path) for path in (moments, *model)}

    def _finish(
        self, temporary: Path, final: Path, marker: dict[str, Any], callbacks: Sequence[Callback]
    ) -> None:
        if self.world.is_main:
            replace_json(temporary / COMPLETE, marker)
            shutil.rmtree(final, ignore_errors=True)  # only ever an incomplete one
            temporary.replace(final)
            for callback in callbacks:
                callback.on_checkpoint_named(final)
            fsync_folder(self.folder)
            self._point_at(final.name, marker["progress"])

    def _point_at(self, tag: str, progress: dict[str, Any]) -> None:
        """Link the newest and the best checkpoint, then delete those no longer kept."""
        replace_text(self.folder / "latest", tag)
        replace_link(self.run / "last", f"checkpoints/{tag}")
        tags = sorted(folder.name for folder in self.folder.glob(TAGS))
        kept = set(tags[-self.keep :])
        if self.keep_every:
            steps = {tag: int(tag.removeprefix("step-")) for tag in tags}
            kept |= {tag for tag, step in steps.items() if step % self.keep_every == 0}
        if "best" in progress:
            best = tag_of(progress["best"]["step"])
            replace_link(self.run / "best", f"checkpoints/{best}")
            kept.add(best)
        for old in set(tags) - kept:
            # Renamed first: a half-deleted folder must not look like a checkpoint.
            dropped = (self.folder / old).rename(self.folder / f"{old}.dropped")
            shutil.rmtree(dropped, ignore_errors=True)

    def _save_model(self, engine: deepspeed.DeepSpeedEngine, folder: Path) -> None:
        model: Model = engine.module
        partitioned = engine.zero_optimization_stage() == 3
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=partitioned):
            if self.world.is_main:
                save_model(model, folder, tokenizer=self.tokenizer)


def tag_of(step: int) -> str:
    """The name of the checkpoint after `step` updates."""
    return f"step-{step:08d}"


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The COMPLETE marker, or None where it is missing or garbled."""
    try:
        marker = json.loads((folder / COMPLETE).read_text())
        return marker if isinstance(marker["files"], dict) and "updates" in marker else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_markers(run: Path) -> dict[Path, dict[str, Any]]:
    """The markers of the complete checkpoints of a run, by folder."""
    found = ((folder, read_marker(folder)) for folder in (run / "checkpoints").glob(TAGS))
    return {folder: marker for folder, marker in found if marker}


def damage(folder: Path, files: dict[str, list[int]]) -> list[str]:
    """One line for each of `files` (relative name: size, CRC-32) that has changed since."""
    faults = []
    for name, expected in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != expected[0]:
                faults.append(f"{name} has {size} bytes of {expected[0]}")
            elif sums(folder / name) != expected:
                faults.append(f"{name} does not match its CRC")
        except OSError as error:
            faults.append(f"{name}: {error.strerror}")
    return faults


def sums(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file, flushed to disk first."""
    size = crc = 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while chunk := file.read(2**22):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


def as_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name, as JSON gives them back."""
    return json.loads(json.dumps(flatten(settings)))


def fsync_folder(folder: Path) -> None:
    """Flush the folder's entries, so that a rename outlasts a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
