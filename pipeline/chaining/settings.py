"""The settings of slurm/settings.sh, as the chain reads them from the environment."""

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")
Number = TypeVar("Number", int, float)

KINDS = ("preprocess", "pretrain", "finetune", "evaluate", "report")
MINUTE = 1 / 60  # of an hour, the least a limit can be


@dataclass(frozen=True)
class Settings:
    """What the chain needs to know; folders are absolute, `flags` are sbatch's, of each kind."""

    root: Path
    shards: Path
    runs: Path
    sets: tuple[str, ...]
    preprocess_jobs: int
    pretrain_hours: float
    requeue: bool
    max_requeues: int
    gpu_hour_cost: float
    currency: str
    flags: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Settings":
        """Raises ValueError that names the variable which is missing or wrong."""

        def given(name: str, expected: str, read: Callable[[str], Value]) -> Value:
            text = environment.get(name, "").strip()
            try:
                return read(text)
            except ValueError:
                raise ValueError(
                    f"{name} is '{text}', expected {expected}; see slurm/settings.sh, which "
                    "slurm/chain.sh reads"
                ) from None

        root = given("LOCOST_ROOT", "the repository's folder", _absolute)

        def folder(name: str) -> Path:
            path = given(name, "a folder", _text)
            return Path(os.path.abspath(root / path))  # noqa: PTH100  (links stay as they are)

        return cls(
            root=root,
            shards=folder("SHARDS"),
            runs=folder("RUNS"),
            sets=given("SETS", "names of different sets (letters, digits, _)", _set_names),
            preprocess_jobs=given("PREPROCESS_JOBS", "a number, at least 1", _at_least(int, 1)),
            pretrain_hours=given("PRETRAIN_HOURS", "hours, above 0", _at_least(float, MINUTE)),
            requeue=given("REQUEUE", "0 or 1", _switch),
            max_requeues=given("MAX_REQUEUES", "a number, 0 or more", _at_least(int, 0)),
            gpu_hour_cost=given("GPU_HOUR_COST", "a price, 0: not known", _at_least(float, 0.0)),
            currency=environment.get("CURRENCY", ""),
            flags={
                kind: given(f"{kind.upper()}_FLAGS", "flags of sbatch", _words) for kind in KINDS
            },
        )


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _absolute(text: str) -> Path:
    path = Path(_text(text))
    if not path.is_absolute():
        raise ValueError
    return path


def _set_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split())
    distinct = len(set(names)) == len(names)
    if not names or not distinct or not all(re.fullmatch(r"\w+", n, re.ASCII) for n in names):
        raise ValueError
    if not {"c4", "pretrain"}.isdisjoint(names):  # names of their own in folders and scripts
        raise ValueError
    return names


def _at_least(kind: Callable[[str], Number], least: Number) -> Callable[[str], Number]:
    def read(text: str) -> Number:
        number = kind(text)
        if not least <= number < float("inf"):
            raise ValueError
        return number

    return read


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))
