"""What a job asks of Slurm: from its script's #SBATCH lines, SBATCH_* variables, sbatch's flags.

The later of the three holds, as in sbatch itself.
"""

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHORT = {"t": "time", "N": "nodes", "G": "gpus", "n": "ntasks"}
READ = (
    "time", "nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres",
    "signal",
)  # fmt: skip
VARIABLES = {
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_SIGNAL": "signal",
}
UNLIMITED = ("unlimited", "infinite", "-1", "0")


@dataclass(frozen=True)
class Request:
    """One job, or one task of an array: nodes, GPUs of each, limit (None: the partition's own).

    `warning` is how long before its end it is told to stop, in minutes.
    """

    nodes: int
    gpus: int
    minutes: float | None
    warning: float = 0.0

    @classmethod
    def of(cls, script: str, environment: Mapping[str, str], flags: Iterable[str]) -> "Request":
        """From a script's text. Raises ValueError for a value that cannot be read."""
        words = _directives(script)
        variables = {
            name: environment[key] for key, name in VARIABLES.items() if environment.get(key)
        }
        found = {**_options(words), **variables, **_options(flags)}
        nodes = _number("nodes", found.get("nodes", "1").rpartition("-")[2])
        tasks = nodes * _number("ntasks-per-node", found.get("ntasks-per-node", "1"))
        if "ntasks" in found:
            tasks = _number("ntasks", found["ntasks"])
        total = max(
            _gpus(found.get("gpus", "0")),
            _gpus(found.get("gpus-per-node", "0")) * nodes,
            _gpus(found.get("gpus-per-task", "0")) * tasks,
            _gres(found.get("gres", "")) * nodes,
        )
        return cls(
            nodes=nodes,
            gpus=math.ceil(total / nodes),
            minutes=minutes(found["time"]) if "time" in found else None,
            warning=_warning(found.get("signal", "")),
        )

    def runs(self, hours: float) -> int:
        """How many such jobs, one after the other, work for `hours`.

        Raises ValueError where the limit is not known or leaves no time to work.
        """
        if self.minutes is None:
            raise ValueError("has no time limit; give one, such as --time=20:00:00")
        usable = self.minutes - self.warning
        if usable <= 0:
            raise ValueError(
                f"has a time limit of {self.minutes:g} min and is told to stop {self.warning:g} "
                "min before its end, which leaves no time to work; give more, such as "
                "--time=20:00:00"
            )
        return max(1, math.ceil(hours * 60 / usable))


def minutes(text: str) -> float | None:
    """A time limit as Slurm writes it: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None: no limit.

    Raises ValueError for anything else.
    """
    if text.lower() in UNLIMITED:
        return None
    days, dash, rest = text.rpartition("-")
    try:
        numbers = [int(part) for part in rest.split(":")]
        if min(numbers) < 0 or len(numbers) > 3:
            raise ValueError
        if dash:
            hours, minute, second = (*numbers, 0, 0)[:3]
            return int(days) * 1440 + hours * 60 + minute + second / 60
        if len(numbers) == 3:
            return numbers[0] * 60 + numbers[1] + numbers[2] / 60
        return numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0)
    except ValueError:
        raise ValueError(
            f"time limit '{text}' is not one of Slurm's forms, such as 20:00:00 or 2-12"
        ) from None


def _directives(script: str) -> list[str]:
    """The words of the #SBATCH lines, which end where the first command begins."""
    words = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.startswith("#"):
            break
    return words


def _options(words: Iterable[str]) -> dict[str, str]:
    """The options in READ among sbatch's flags, by long name; the last of each holds."""
    found, waiting = {}, ""
    for word in words:
        if waiting:
            found[waiting], waiting = word, ""
        elif word.startswith("--"):
            name, given, value = word[2:].partition("=")
            if name in READ and given:
                found[name] = value
            elif name in READ:
                waiting = name
        elif word.startswith("-") and word[1:2] in SHORT:
            name = SHORT[word[1]]
            if word[2:]:
                found[name] = word[2:].removeprefix("=")
            else:
                waiting = name
    return found


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--{name}={text} is not a number of 1 or more")
    return int(text)


def _gpus(text: str) -> int:
    """The sum of counts such as 4, h100:4 or a100:2,h100:2."""
    try:
        return sum(int(part.rpartition(":")[2]) for part in text.split(","))
    except ValueError:
        raise ValueError(f"'{text}' is not a number of GPUs, such as 4 or h100:4") from None


def _gres(text: str) -> int:
    """The GPUs of a node among generic resources such as gpu:4, gpu:h100:4 or gpu,ssd:1."""
    counts = [part.split(":")[1:] for part in text.split(",") if part.split(":")[0] == "gpu"]
    return sum(int(c[-1]) if c and c[-1].isdecimal() else 1 for c in counts)


def _warning(text: str) -> float:
    """Minutes of a --signal such as B:USR2@300; Slurm's own default is 60 s."""
    seconds = text.partition("@")[2]
    return (int(seconds) / 60 if seconds.isdecimal() else 1.0) if text else 0.0
