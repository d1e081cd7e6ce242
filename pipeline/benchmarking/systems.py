"""Comparison of LOCOST with other whole systems: memory, time, and the longest input that fits.

As in the paper's table of samples a second and its figure of memory against length. All systems of
one length, mode and memory setting are measured in turn, then again in the next round, so that they
share whatever the machine does meanwhile. The record is written after every run; the same command
goes on where it ended.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

import torch

from pipeline.baselines.systems import ATTENTION, SYSTEMS
from pipeline.benchmarking.cases import Case, Memory, Mode, Row
from pipeline.benchmarking.sweep import measure_apart
from pipeline.benchmarking.system_ratios import OURS
from pipeline.benchmarking.system_record import SystemRecord, code_fingerprint, read_record
from pipeline.benchmarking.system_text import page_lines, summary
from pipeline.common.files import replace_text
from pipeline.common.paths import ROOT
from pipeline.common.units import GIB
from pipeline.distributed.device import hardware_name

LEGACY = ROOT / ".venv-legacy" / "bin" / "python"
NAMES = (OURS, *SYSTEMS, *(f"{name}:{choice}" for name in SYSTEMS for choice in ATTENTION[1:]))
COMPARED = (OURS, *(name for name in SYSTEMS if name != "longt5-local"))
"""By default: the systems of the paper's tables."""
ALLOCATOR = ("MALLOC_", "GLIBC_TUNABLES")
"""Variables that decide which freed memory the C library keeps, by how they begin."""
VERSIONS = (
    "import importlib.metadata as m; "
    "print(*(m.version(n) if any(m.distributions(name=n)) else None for n in "
    "('torch', 'transformers')))"
)


def run(options: argparse.Namespace, device: torch.device, memory_bytes: int | None) -> None:
    """Measure what is missing, print each run, then what the record says; write the figure.

    With `--page` nothing is measured: the record's tables are written into that page.
    """
    written = options.output / "systems.json"
    if options.page is not None:
        write_page(options.page, written)
        return
    python = {name: interpreter(name, options.legacy_python) for name in options.systems}
    record = SystemRecord(written, hardware_name(device), settings(options, memory_bytes))
    wanted = [
        (case, number)
        for case, number in runs(options)
        if python[case.subject] and not record.has(case, number)
    ]
    if absent := [name for name, path in python.items() if path is None]:
        print(f"not measured: {', '.join(absent)}, without {options.legacy_python}: `make legacy`")
    sitting = now()
    for place, (case, number) in enumerate(wanted, 1):
        if record.has(case, number):  # a cross of a round before
            continue
        row = known(case, record.rows)
        if row is not None:
            record.put(row)
        else:
            noted = {"round": number, "sitting": sitting, **circumstances()}
            began, before = time.perf_counter(), busy_seconds()
            found = measure_apart(
                case, options.limit_s, memory_bytes, str(python[case.subject]), environment()
            )
            noted["elapsed_s"] = time.perf_counter() - began
            noted["others_s"] = round(busy_seconds() - before, 2)
            row = record.add(case, found, noted)
        print(f"{place}/{len(wanted)}  round {number}  {as_line(row, number)}", flush=True)
    for line in summary(record.content):
        print(line)
    # These need more than a GPU node may have.
    from pipeline.reporting.measurements import Measurements
    from pipeline.reporting.paper.figures import plot_memory

    plot_memory(Measurements(hardware_name(device), record.rows), options.output / "systems.png")
    print(f"{written}, {options.output / 'systems.png'}")


def write_page(page: Path, written: Path) -> None:
    """Write the record's tables between the marks of a page. Raises ValueError without either."""
    from pipeline.common.html import refreshed  # needs more than a GPU node may have

    file = os.path.relpath(written, page.parent)  # as a reader of the page finds it
    text = "\n".join(page_lines(read_record(written), file))
    replace_text(page, refreshed(page.read_text(encoding="utf-8"), "systems", text))
    print(f"{page}, from {written}")


def settings(options: argparse.Namespace, memory_bytes: int | None) -> dict[str, Any]:
    """What all runs of a record share. None: not there."""
    legacy = options.legacy_python
    return {
        "device": options.device, "dtype": options.dtype, "batch": options.batch,
        "tokens": options.tokens, "threads": options.threads, "sizes": options.settings,
        "limit_s": options.limit_s,
        "memory_limit_gib": "available" if memory_bytes is None else memory_bytes / GIB,
        "environment": environment(), "code": code_fingerprint(),
        "versions": versions(Path(sys.executable)),
        "legacy_versions": versions(legacy) if legacy.exists() else None,
    }  # fmt: skip


def runs(options: argparse.Namespace) -> Iterator[tuple[Case, int]]:
    """All runs in their order, shortest lengths first.

    By length, mode, memory setting and round (from 1), then system; another system begins each
    round.
    """
    modes: Sequence[Mode] = get_args(Mode) if options.mode == "both" else (options.mode,)
    for length in sorted(options.lengths):
        for mode in modes:
            for memory in get_args(Memory):
                for number in range(1, options.rounds + 1):
                    first = (number - 1) % len(options.systems)
                    for system in (*options.systems[first:], *options.systems[:first]):
                        yield Case(
                            subject=system, mode=mode, memory=memory, length=length,
                            tokens=options.tokens, batch=options.batch, dtype=options.dtype,
                            device=options.device, threads=options.threads,
                            model=options.settings.get(system.partition(":")[0], {}),
                        ), number  # fmt: skip


def known(case: Case, before: Sequence[Row]) -> Row | None:
    """The case's row where the rows before it already give it; None where it must be run.

    A failure at a shorter length would repeat; and without gradients only LOCOST saves memory.
    """
    same = [row for row in before if (row["subject"], row["mode"]) == (case.subject, case.mode)]
    for row in sorted(same, key=lambda row: row["length"]):
        if row["memory"] == case.memory and row["length"] < case.length and "cross" in row:
            cross = f"{row['cross'].split(' (at ')[0]} (at {row['length']:,})"
            return {**asdict(case), "cross": cross, "runs": []}
    if (case.mode, case.memory) == ("inference", "saving") and case.subject != OURS:
        for row in same:
            if (row["memory"], row["length"]) == ("plain", case.length):
                return {**row, "memory": "saving", "as": "plain"}
    return None


def interpreter(system: str, legacy: Path) -> Path | None:
    """The Python that has the system's packages; None where it is not there."""
    name = system.partition(":")[0]
    if name == OURS or not SYSTEMS[next(one for one in SYSTEMS if one == name)].legacy:
        return Path(sys.executable)
    return legacy if legacy.exists() else None


def versions(python: Path) -> dict[str, str]:
    """Versions of torch and transformers in that Python's environment."""
    done = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True)
    return dict(zip(("torch", "transformers"), done.stdout.split(), strict=True))


def environment() -> dict[str, str]:
    """Variables of every run: threads that wait for each other take no CPU time; the allocator is
    the caller's, by default the C library's own."""
    given = {name: value for name, value in os.environ.items() if name.startswith(ALLOCATOR)}
    return {**given, "OMP_WAIT_POLICY": "passive"}


def circumstances() -> dict[str, Any]:
    """What is noted before a run: when, of which code, and how busy the machine is."""
    return {"time": now(), "code": described_code(), "load": round(os.getloadavg()[0], 2)}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def described_code() -> str | None:
    """The commit, as git describes it; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
            capture_output=True, text=True,
        )  # fmt: skip
    except OSError:  # no git
        return None
    return done.stdout.strip() or None


def busy_seconds() -> float:
    """CPU seconds that the machine has spent on other programs than this one's runs, or that its
    host has taken away; 0 where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = map(int, fields[:8])
    busy = (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
    ours = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return busy - sum(usage.ru_utime + usage.ru_stime for usage in ours)


def as_line(row: Mapping[str, Any], number: int) -> str:
    """A printed run."""
    start = f"{row['subject']:22}{row['mode']:10} {row['memory']:7}{row['length']:>8,}"
    if "cross" in row:
        return f"{start}  × {row['cross']}"
    if "as" in row:
        return f"{start}  as {row['as']}"
    (made,) = (one for one in row["runs"] if one["round"] == number)
    return (
        f"{start}  {made['wall_s']:8.2f} s  {made['cpu_s']:8.2f} CPU s  {made['peak_gib']:6.2f} GiB"
        f"  load {made['load']:.2f}  others {made['others_s']:.1f} of {made['elapsed_s']:.1f} s"
    )


def parse_sizes(text: str) -> dict[str, dict[str, Any]]:
    """The JSON of `--settings`. Raises ArgumentTypeError for other text."""
    try:
        sizes = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    names = [OURS, *SYSTEMS]
    if not isinstance(sizes, dict) or not sizes.keys() <= set(names):
        raise argparse.ArgumentTypeError(f"{text!r}: give settings by system, {', '.join(names)}")
    return sizes
