"""Checkpoints: written under a temporary tag by all processes, complete or not there.

    RUN/checkpoints/step-00001000/     model/ the weights, for everybody (config, tokenizer)
                                optimizer/ AdamW's moments, a file of each process
                                COMPLETE  step, size and CRC-32 of every file, what a resumed run
                                          must agree on, and the settings it was made with
    RUN/checkpoints/latest             the newest complete tag, written last
    RUN/last, RUN/best                 links to two of them

Weights and moments are fp32 and are copied, never computed: the same number of processes goes on
bit for bit. Neither the number of processes nor the ZeRO stage is in the files (optimizer_state
tells why they are not DeepSpeed's), so a run goes on under others too, to rounding.

The CRC of each file is taken as it is written, by the process that writes it, and compared by all
processes together before a run goes on: a file of the right size with wrong bytes is damage too.
At 234M parameters a checkpoint has 2.8 GB, of which the weights are a third, written by rank 0, and
the rest is shared out; on one process and one disk a save took 12 s, reading it back 1.4 s, and the
CRC of all of it 1.1 s (SHA-256 would take twice that).
"""

import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import deepspeed
import torch
from safetensors import SafetensorError

from pipeline.distributed import World
from pipeline.files import hold_lock, replace_json, replace_link, replace_text
from pipeline.models import Model, load_model, save_model
from pipeline.training.health import RunFailed
from pipeline.training.optimizer_state import load_moments, save_moments, updates_applied

COMPLETE = "COMPLETE"
MODEL, OPTIMIZER = "model", "optimizer"
TAGS = "step-*[0-9]"
T = TypeVar("T")


class SaveFailed(RunFailed):
    """A checkpoint could not be written; the older ones are whole."""


class Checkpoints:
    """The checkpoints of one run folder; made, saved and resumed by all processes together.

    `identity` holds what decides the sample order and what is learnt (dataset, seed, batch size,
    architecture, ...): a folder whose newest checkpoint is of another identity is refused with
    ValueError, and so is one that another process writes to, or whose checkpoints are all damaged.
    `settings` holds the rest (processes, ZeRO stage, rates): a difference is told, in one line.
    """

    def __init__(
        self,
        run: Path,
        world: World,
        tokenizer: Path,
        identity: dict[str, Any],
        settings: dict[str, Any],
        keep: int,
    ) -> None:
        self.run, self.folder = run, run / "checkpoints"
        self.world, self.tokenizer, self.keep = world, tokenizer, keep
        self.identity, self.settings = flatten(identity), flatten(settings)
        problem = self._claim() if world.is_main else None
        if problem := world.broadcast(problem):
            raise ValueError(problem)
        self.marker = self._newest()
        if self.marker:
            self._compare(self.marker)

    @property
    def steps_done(self) -> int:
        """Updates that the newest complete checkpoint holds; 0 without one."""
        return self.marker["step"] if self.marker else 0

    def save(self, engine: deepspeed.DeepSpeedEngine, step: int, progress: dict[str, Any]) -> float:
        """Save after `step` updates; the seconds it took. `progress` comes back from `resume`.

        The links, and which old checkpoints go, follow `progress["best"]["step"]`. Raises
        SaveFailed on every process if one could not write; what was there before is untouched.
        """
        began = time.perf_counter()
        final = self.folder / tag_of(step)
        temporary = final.with_name(final.name + ".tmp")
        self._together(temporary, lambda: self._clear(temporary))
        written = self._together(temporary, lambda: self._write(engine, temporary))
        marker = {
            "step": step,
            "updates": updates_applied(engine),
            "progress": progress,
            "identity": self.identity,
            "settings": self.settings,
            "files": {name: entry for files in written for name, entry in files.items()},
        }
        self._together(temporary, lambda: self._finish(temporary, final, marker))
        return time.perf_counter() - began

    def load_weights(self, model: Model) -> None:
        """Put the newest checkpoint's weights into the model, before DeepSpeed takes it apart."""
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
            changes = [
                f"{name} {old} -> {now}"
                for name, old, now in differences(self.marker["settings"], self.settings)
            ]
            changed = f"; changed since: {', '.join(changes)}" if changes else ""
            print(f"{self.run} goes on after step {self.steps_done}{changed}", flush=True)
        return self.marker["step"], self.marker["progress"]

    def close(self) -> None:
        """Let go of the folder, which another run may take then, also in this process."""
        if self.world.is_main and self.lock is not None:
            self.lock.close()

    def leave_no_trace(self) -> None:
        """After a dry run: remove the folder if there is nothing in it but what was made here."""
        if not self.world.is_main:
            return
        made = {self.run / ".lock", self.folder}
        if set(self.run.iterdir()) <= made and not any(self.folder.iterdir()):
            (self.run / ".lock").unlink()
            self.folder.rmdir()
            self.run.rmdir()

    def _claim(self) -> str | None:
        """Create the folder and lock the run while this process lives; else say why not."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = hold_lock(self.run / ".lock")
        except OSError as error:
            return f"output {self.run}: {error.strerror}; mend it or give another --output"
        if self.lock is None:
            return (
                f"output {self.run}: another process trains in this folder; wait for it to end, or "
                "give another --output"
            )
        return None

    def _compare(self, marker: dict[str, Any]) -> None:
        if found := differences(marker["identity"], self.identity):
            listed = "; ".join(f"{name}: checkpoint {old}, now {now}" for name, old, now in found)
            raise ValueError(
                f"output {self.run} holds a different run ({listed}); "
                "give the same settings to go on with it, or another --output to start anew"
            )

    def _newest(self) -> dict[str, Any] | None:
        """The newest marker whose files are whole, each process having read a part of them."""
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
                f"{self.folder} holds no whole checkpoint; bring back the damaged file, or start "
                "anew with another --output"
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
                "are whole, make room or mend the folder and start the same command again"
            )
        return self.world.gather(result)

    def _clear(self, temporary: Path) -> None:
        """Make the folder, once the room that killed saves and removals still take is free."""
        if self.world.is_main:
            for left in (*self.folder.glob("step-*.tmp"), *self.folder.glob("step-*.dropped")):
                shutil.rmtree(left, ignore_errors=True)
            (temporary / OPTIMIZER).mkdir(parents=True)

    def _write(self, engine: deepspeed.DeepSpeedEngine, folder: Path) -> dict[str, list[int]]:
        """Write this process's files; their sums by relative name."""
        moments = folder / OPTIMIZER / f"{self.world.rank:05d}-of-{self.world.size:05d}.safetensors"
        moments.parent.mkdir(parents=True, exist_ok=True)  # another node may not see it yet
        save_moments(engine, moments, self.world.rank)
        self._save_model(engine, folder / MODEL)
        model = sorted((folder / MODEL).iterdir()) if self.world.is_main else []
        return {str(path.relative_to(folder)): sums(path) for path in (moments, *model)}

    def _finish(self, temporary: Path, final: Path, marker: dict[str, Any]) -> None:
        if self.world.is_main:
            replace_json(temporary / COMPLETE, marker)
            shutil.rmtree(final, ignore_errors=True)  # only ever an incomplete one
            temporary.replace(final)
            fsync_folder(self.folder)
            self._point_at(final.name, marker["progress"])

    def _point_at(self, tag: str, progress: dict[str, Any]) -> None:
        """Name the newest and the best checkpoint, then drop what is no longer kept."""
        replace_text(self.folder / "latest", tag)
        replace_link(self.run / "last", f"checkpoints/{tag}")
        tags = sorted(folder.name for folder in self.folder.glob(TAGS))
        kept = set(tags[-self.keep :])
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


def damage(folder: Path, files: dict[str, list[int]]) -> list[str]:
    """One line for each of `files` (relative name: size, CRC-32) that is not as it was written."""
    faults = []
    for name, expected in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != expected[0]:
                faults.append(f"{name} has {size} bytes of {expected[0]}")
            elif sums(folder / name) != expected:
                faults.append(f"{name} has other bytes than were written")
        except OSError as error:
            faults.append(f"{name}: {error.strerror}")
    return faults


def sums(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file, after it was brought to disk."""
    size = crc = 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while chunk := file.read(2**22):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name, as JSON would give them back."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, value before, value now) of every setting that is not the same in both."""
    return [
        (name, before.get(name), now.get(name))
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


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
