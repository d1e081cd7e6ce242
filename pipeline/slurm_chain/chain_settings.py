"""The settings of slurm/settings.sh, as bash reads them."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Given = Callable[[str, str, Callable[[str], Any]], Any]
"""(setting, what is expected, how to read its text) to its value; ValueError names a wrong one."""

OF_SETS = (  # may have a set's name as a prefix
    "INPUT", "PREPROCESS_ARGUMENTS", "FINETUNE_ARGUMENTS", "EVALUATE_ARGUMENTS", "EVALUATE_SPLIT",
)  # fmt: skip
OF_SYSTEMS = (  # have a baseline's name as a prefix, the arguments also a set's before it
    "MODEL", "SETS", "OWN_TOKENIZER", "PYTHON", "EXTRAPOLATE", "CONTEXTS", "FINETUNE_ARGUMENTS",
    "EVALUATE_ARGUMENTS",
)  # fmt: skip
LOCOST = "locost"
BASELINES = (  # those of train.py; each may have -large behind it
    "longt5-tglobal", "longt5-local", "led", "bigbird", "lsg", "t5", "bart", "pegasus",
)  # fmt: skip
KINDS = ("preprocess", "pretrain", "finetune", "evaluate", "measure", "report")
ON_GPUS = ("pretrain", "finetune", "evaluate")
MEASURES = ("bert_score", "blanc", "judge", "systems", "kernels")
OWN_FLAGS = {  # of sbatch, which the chain gives itself, with the remedy
    "--job-name": "set JOB_PREFIX", "-J": "set JOB_PREFIX",
    "--output": "", "-o": "", "--error": "", "-e": "",
    "--comment": "", "--dependency": "", "-d": "", "--array": "", "-a": "", "--parsable": "",
    "--test-only": "", "--wait": "", "-W": "", "--wrap": "", "--export": "",
}  # fmt: skip
OWN_GPU_FLAGS = {
    "--nodes": "set {}_NODES", "-N": "set {}_NODES",
    "--ntasks-per-node": "set GPUS_PER_NODE", "--ntasks": "set {}_NODES and GPUS_PER_NODE",
    "-n": "set {}_NODES and GPUS_PER_NODE",
}  # fmt: skip


@dataclass(frozen=True)
class ChainSystem:
    """LOCOST or a baseline: the sets that it is trained and evaluated on.

    `own_tokenizer`: the sets' shards are made again for it. `extrapolate`: numbers of tokens that
    its model of arXiv reads as well; `contexts`: those that more models of BookSum-Book are
    trained on.
    """

    name: str
    sets: tuple[str, ...]
    own_tokenizer: bool = False
    extrapolate: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()

    def on(self, name: str) -> str:
        """The set `name` with this system, as the job scripts call it: SET or SET:SYSTEM."""
        return name if self.name == LOCOST else f"{name}:{self.name}"


@dataclass(frozen=True)
class ChainSettings:
    """The chain's settings: absolute folders, and sbatch's `flags` for each kind of stage.

    `systems`: LOCOST first. `links`: jobs one after another for a stage that can resume.
    `measures`: those of MEASURES that are wanted. `overridden`: the settings that the environment
    of this call overrides.
    """

    root: Path
    shards: Path
    runs: Path
    sets: tuple[str, ...]
    systems: tuple[ChainSystem, ...]
    measures: tuple[str, ...]
    metric_sets: tuple[str, ...]
    judge_sets: tuple[str, ...]
    name: str
    preprocess_jobs: int
    links: int
    flags: Mapping[str, tuple[str, ...]]
    overridden: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, str], overridden: tuple[str, ...] = ()) -> "ChainSettings":
        """Raises ValueError naming the setting that is missing or wrong."""

        def given(name: str, expected: str, read: Callable[[str], Any]) -> Any:
            text = values.get(name, "").strip()
            try:
                return read(text)
            except ValueError:
                raise ValueError(
                    f"{name} is '{text}', expected {expected}; set it in slurm/settings.sh"
                ) from None

        root = given("LOCOST_ROOT", "the repository's absolute path", _absolute)

        def folder(name: str) -> Path:
            path = given(name, "a folder", _text)
            return Path(os.path.abspath(root / path))  # noqa: PTH100  (does not resolve links)

        requeue = given("REQUEUE", "0 or 1", _switch)
        cpu = given("CPU", "0 or 1", _switch)
        links = given("LINKS", "a number of 1 or more", _count)
        per_node = given("GPUS_PER_NODE", "a number of 1 or more", _count)
        common = given("JOB_FLAGS", "options of sbatch", _words)
        gpus: tuple[str, ...] = ("--gpus-per-node=0",)  # the scripts' own request
        if not cpu:
            gpus += given("GPU_FLAGS", "options of sbatch", _words)
        flags = {}
        for kind in KINDS:
            name = f"{kind.upper()}_FLAGS"
            words = (*common, *given(name, "options of sbatch", _words))
            refuse_own_flags(f"JOB_FLAGS or {name}", words, kind)
            if kind in ON_GPUS:
                nodes = given(f"{kind.upper()}_NODES", "a number of 1 or more", _count)
                words += (*gpus, f"--nodes={nodes}", f"--ntasks-per-node={per_node}")
            elif kind in ("measure", "report"):
                words += ("--gpus-per-node=0",)
                if kind == "measure" and not cpu:
                    words += given("ONE_GPU_FLAGS", "options of sbatch", _words)
            flags[kind] = words
        sets = given("SETS", "distinct names of sets (letters, digits, _)", _set_names)
        return cls(
            root=root,
            shards=folder("SHARDS"),
            runs=folder("RUNS"),
            sets=sets,
            systems=_systems(given, sets),
            measures=tuple(
                name for name in MEASURES if given(f"{name.upper()}_ARGUMENTS", "arguments", _words)
            ),
            metric_sets=_in(sets, given("METRIC_SETS", "names of sets", _words)),
            judge_sets=_in(sets, given("JUDGE_SETS", "names of sets", _words)),
            name=given("JOB_PREFIX", "a prefix without spaces and / for job names", _prefix),
            preprocess_jobs=given("PREPROCESS_JOBS", "a number of 1 or more", _count),
            links=1 if requeue else links,
            flags=flags,
            overridden=overridden,
        )


def read_settings(root: Path, environment: Mapping[str, str]) -> ChainSettings:
    """The settings in LOCOST_SETTINGS, else slurm/settings.sh, overridden by the environment.

    Raises ValueError if bash cannot read the file, or for a wrong setting.
    """
    file = Path(environment.get("LOCOST_SETTINGS") or root / "slurm" / "settings.sh")
    done = subprocess.run(
        ["bash", "-c", 'set -a; source "$0" >&2 && exec env -0', str(file)],
        env={**environment, "LOCOST_ROOT": str(root)}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"{file} cannot be read by bash: {done.stderr.strip()}")
    values = dict(line.partition("=")[::2] for line in done.stdout.split("\0") if line)
    known = re.findall(r"\$\{(\w+):=", file.read_text(encoding="utf-8"))
    of_sets = [name.upper() for name in values.get("SETS", "").split()]
    of_systems = [_prefixed(name) for name in (LOCOST, *values.get("BASELINES", "").split())]
    known += [f"{name}_{own}" for name in of_sets for own in OF_SETS]
    known += [
        f"{first}{name}_{own}"
        for first in ("", *(f"{one}_" for one in of_sets))
        for name in of_systems
        for own in OF_SYSTEMS
    ]
    return ChainSettings.of(values, tuple(sorted(environment.keys() & set(known))))


def _systems(given: Given, sets: tuple[str, ...]) -> tuple[ChainSystem, ...]:
    """LOCOST, then each of BASELINES. Raises ValueError where one has no weights or no set."""

    def lengths(name: str) -> tuple[int, ...]:
        return given(name, "numbers of tokens", _lengths)

    systems = [ChainSystem(LOCOST, sets, False, lengths("EXTRAPOLATE"), lengths("CONTEXTS"))]
    for name in given("BASELINES", "distinct names of systems (docs/slurm.md)", _system_names):
        own = _prefixed(name)
        given(f"{own}_MODEL", f"the folder of {name}'s weights", _text)
        some = f"some of SETS ({' '.join(sets)}), or nothing (all)"
        switch = "0, 1 or nothing (1)"
        systems.append(
            ChainSystem(
                name,
                given(f"{own}_SETS", some, lambda text: _some(sets, tuple(text.split()))),
                given(f"{own}_OWN_TOKENIZER", switch, lambda text: _switch(text or "1")),
                lengths(f"{own}_EXTRAPOLATE"),
                lengths(f"{own}_CONTEXTS"),
            )
        )
    return tuple(systems)


def _prefixed(system: str) -> str:
    """A system's name as the prefix of its settings."""
    return system.upper().replace("-", "_")


def _in(sets: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in sets if name in wanted)


def refuse_own_flags(setting: str, words: tuple[str, ...], kind: str) -> None:
    """Raise ValueError if one of sbatch's options is the chain's own."""
    own = {**OWN_FLAGS, **(OWN_GPU_FLAGS if kind in ON_GPUS else {})}
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if name in own:
            remedy = own[name].format(kind.upper())
            raise ValueError(
                f"{setting} has {word}, which chain.sh sets itself; leave it out"
                + (f" and {remedy}" if remedy else "")
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


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[^\s/%|]+", text):
        raise ValueError
    return text


def _set_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split())
    distinct = len(set(names)) == len(names)
    if not names or not distinct or not all(re.fullmatch(r"\w+", n, re.ASCII) for n in names):
        raise ValueError
    if {"c4", "pretrain"} & set(names):  # taken: folders and script arguments have these names
        raise ValueError
    return names


def _system_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split())
    alike = {name.removesuffix("-large") for name in names} - set(BASELINES)
    if alike or len(set(names)) != len(names):
        raise ValueError
    return names


def _some(sets: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    if not (found := _in(sets, wanted or sets)):
        raise ValueError
    return found


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split()))


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))
