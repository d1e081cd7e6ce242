"""A choice between ways of computing the same: a test of each, then a trial of their times."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

Name = TypeVar("Name", bound=str)

WORTHWHILE = 1.05
"""How many times as long as another candidate the reference must take for that to be chosen."""
TRIAL_RUNS = 5
"""Timed runs of a trial, of which the median counts."""


@dataclass(frozen=True)
class Candidates(Generic[Name]):
    """The ways of computing one thing, and how they are tested and timed."""

    what: str
    """As in messages: attention."""
    option: str
    """That chooses by name: --train.attention."""
    names: Sequence[Name]
    """In the order of preference at equal times, apart from the reference."""
    reference: Name
    """Taken where no other is clearly faster, and where none was timed."""
    test: Callable[[Name], float]
    """The relative error of one; raises ValueError if it is too large, or whatever it meets."""
    trial: Callable[[Name], float]
    """Milliseconds."""
    obstacles: Mapping[Name, str]
    """Why some cannot run here."""
    untried: Mapping[Name, str] = field(default_factory=dict)
    """Why auto does not try some that can."""
    where: str = ""
    """On which device and in which type they were tested."""
    test_reference: bool = True
    """Whether the reference is tested where it is the only one to try."""


def choose(name: str, candidates: Candidates[Name]) -> tuple[Name, str]:
    """A candidate and why, in one line: that of the name, tested, or for auto the fastest.

    `auto` tests those without an obstacle, drops those that fail, times the rest, and takes the
    fastest if it is 5 % faster than the reference. Times differ between processes: one must choose,
    and the others and a resumed run be given the name it chose, which is tested but not timed.

    Raises ValueError if a candidate given by name cannot run here, or if that, or for auto the
    reference, fails its test.
    """
    what, names = candidates.what, candidates.names
    if name not in ("auto", *names):
        raise ValueError(f"{what} {name!r} is unknown: give auto, {', '.join(names)}")
    dropped = dict(candidates.obstacles)
    if name == "auto":
        dropped = {**candidates.untried, **dropped}
    tried = [one for one in names if name == one or (name == "auto" and one not in dropped)]
    if reason := dropped.get(tried[0]):
        instead = f"{candidates.option} {candidates.reference} or auto"
        raise ValueError(f"{what} {name} is not available: {reason}; or give {instead}")
    errors: dict[Name, float] = {}
    times: dict[Name, float] = {}
    if candidates.test_reference or tried != [candidates.reference]:
        errors = _measured(candidates, tried, candidates.test, dropped, name)
    if len(errors) > 1:
        times = _measured(candidates, errors, candidates.trial, dropped, name)
    chosen = fastest(times, candidates.reference) if name == "auto" else tried[0]
    facts = [f"relative error {errors[chosen]:.1e}{candidates.where}"] if errors else []
    if times:
        facts.append("trial: " + ", ".join(f"{one} {times[one]:.1f} ms" for one in times))
    if name == "auto":
        facts += _not_chosen(dropped)
    return chosen, f"{chosen} ({'; '.join(facts)})" if facts else chosen


def _measured(
    candidates: Candidates[Name],
    tried: Iterable[Name],
    measure: Callable[[Name], float],
    dropped: dict[Name, str],
    name: str,
) -> dict[Name, float]:
    """The measure of each; one that raises is added to `dropped`, with the reason.

    Raises ValueError if that is the reference, or the one given by name.
    """
    results: dict[Name, float] = {}
    for one in tried:
        try:
            results[one] = measure(one)
        except Exception as problem:  # whatever a kernel on unknown hardware raises
            dropped[one] = f"it fails here: {str(problem).partition(chr(10))[0]}"
            if one in (candidates.reference, name):
                remedy = "check the installation of torch"
                if one != candidates.reference:
                    remedy = f"give {candidates.option} {candidates.reference}"
                message = f"{candidates.what} {one} is not usable: {dropped[one]}; {remedy}"
                raise ValueError(message) from problem
    return results


def fastest(times: Mapping[Name, float], reference: Name) -> Name:
    """That of the shortest time if it is worth leaving the reference; without times that."""
    best: Name = min(times, key=lambda one: times[one], default=reference)
    if best == reference or times[reference] <= WORTHWHILE * times[best]:
        return reference
    return best


def _not_chosen(dropped: Mapping[Name, str]) -> list[str]:
    """Why candidates were not considered, those of one reason together."""
    names: dict[str, list[str]] = {}
    for one, reason in dropped.items():
        names.setdefault(reason, []).append(one)
    return [f"not {' or '.join(names[reason])}: {reason}" for reason in names]


def conditions(device: torch.device, dtype: torch.dtype) -> dict[str, str | int | float]:
    """What every choice of `auto` depends on: kept beside it, they tell whether it holds."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "dtype": type_name(dtype),
    }


def type_name(dtype: torch.dtype) -> str:
    """As bfloat16, without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def relative_error(ours: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """The largest over pairs of the largest error by the largest exact value; inf for NaN."""
    errors = [(x - y).abs().max() / y.abs().max() for x, y in zip(ours, exact, strict=True)]
    return torch.stack(errors).nan_to_num(torch.inf).max().item()


def within(error: float, tolerance: float) -> float:
    """The error; raises ValueError if it is larger than the tolerance."""
    if not error <= tolerance:
        raise ValueError(f"a relative error of {error:.1e} exceeds {tolerance:.0e}")
    return error


def elapsed(work: Iterable[Callable[[], object]], device: torch.device) -> float:
    """Milliseconds that the work takes on the device, waits for the host included."""
    if device.type != "cuda":
        start = time.perf_counter()
        for one in work:
            one()
        return 1e3 * (time.perf_counter() - start)
    stream = torch.cuda.current_stream(device)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record(stream)
    for one in work:
        one()
    last.record(stream)
    last.synchronize()
    return first.elapsed_time(last)
