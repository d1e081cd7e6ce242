"""Sweeps over lengths: each case in a new process, so that its memory peak is its own."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pipeline.benchmarking.cases import Case, Row, label, measure, needed_bytes
from pipeline.common.files import replace_json
from pipeline.common.power_law import fit_exponent
from pipeline.common.units import GIB
from pipeline.distributed.device import hardware_name, is_out_of_memory, limit_memory
from pipeline.model.memory import available_memory

PROGRAM = Path(__file__).resolve().parents[1] / "benchmark.py"
COLUMNS: dict[str, tuple[str, str]] = {
    "wall_s": ("wall s", "{:.3f}"),
    "cpu_s": ("CPU s", "{:.3f}"),
    "peak_gib": ("peak GiB", "{:.3f}"),
    "tokens_per_s": ("tokens/s", "{:.1f}"),
}


def run(
    command: str,
    cases: Iterable[Case],
    device: torch.device,
    limit_s: float,
    memory_bytes: int | None,
    output: Path,
) -> None:
    """Measure the cases, print a row for each, write COMMAND.json and COMMAND.png to `output`."""
    written, figure = (output / f"{command}.{kind}" for kind in ("json", "png"))
    results = measure_all(command, cases, device, limit_s, memory_bytes, written)
    rows, time = results["rows"], time_field(device)
    results["growth"] = growth(rows, time)
    for name, power in results["growth"].items():
        print(
            f"{name}: L^{power['measured']:.2f} (its law over these lengths: L^{power['law']:.2f})"
        )
    replace_json(written, results)
    from pipeline.benchmarking.sweep_plot import draw  # needs more than a GPU node may have

    fast = {time: COLUMNS[time][0]} if command == "layer" else {"tokens_per_s": "tokens/s"}
    draw(rows, {**fast, "peak_gib": "peak GiB"}, figure)
    print(f"{written}, {figure}")


def measure_all(
    command: str,
    cases: Iterable[Case],
    device: torch.device,
    limit_s: float,
    memory_bytes: int | None,
    written: Path,
) -> dict[str, Any]:
    """Measure all cases; each row is printed and saved to `written` as soon as it is measured."""
    cases = list(cases)  # an invalid one raises before anything is written
    rows: list[Row] = []
    results: dict[str, Any] = {
        "command": command,
        "device": hardware_name(device),
        "torch": torch.__version__,
        "rows": rows,
    }
    written.parent.mkdir(parents=True, exist_ok=True)
    print(header(), flush=True)
    for case in cases:
        rows.append(measure_apart(case, limit_s, memory_bytes))
        print(as_table_line(rows[-1]), flush=True)
        replace_json(written, results)  # an interrupted sweep keeps its rows
    return results


def time_field(device: torch.device) -> str:
    """The time to compare: CPU seconds on a CPU, which others may use too."""
    return "cpu_s" if device.type == "cpu" else "wall_s"


def measure_apart(
    case: Case,
    limit_s: float,
    memory_bytes: int | None,
    python: str = sys.executable,
    environment: Mapping[str, str] = {},
) -> Row:
    """The case's fields with its result from a new process, or with a `cross`: why it has none.

    Not started where it is known to need more than `memory_bytes` (None: the available memory);
    stopped after `limit_s` seconds, or where an allocation exceeds that memory. `python` runs it,
    with these variables besides this process's. Raises ValueError for an invalid case, RuntimeError
    where the process failed.
    """
    row = asdict(case)
    memory = available_memory(torch.device(case.device)) if memory_bytes is None else memory_bytes
    needed = needed_bytes(case)
    if needed > memory:
        cross = f"does not fit (needs {needed / GIB:.1f} GiB of {memory / GIB:.1f})"
        return {**row, "cross": cross, "needed_gib": needed / GIB}
    request = json.dumps({"case": row, "memory_bytes": memory})
    command = [python, str(PROGRAM), "measure", request]
    variables = {**os.environ, **environment}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, env=variables
        )
    except subprocess.TimeoutExpired:
        return {**row, "cross": f"over {limit_s:g} s"}
    if done.returncode == 2:
        raise ValueError(done.stderr.strip().removeprefix("error: "))
    if done.returncode == -9:
        return {**row, "cross": "out of memory (killed by the system)"}
    if done.returncode:
        raise RuntimeError(f"measuring {case.subject} failed:\n{done.stderr}")
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


def measure_here(request: str) -> Row:
    """Runs in the process of `measure_apart`: the result, or a cross where memory ran out."""
    values = json.loads(request)
    case = Case(**values["case"])
    if torch.device(case.device).type == "cpu":
        limit_memory(values["memory_bytes"])
        with suppress(OSError):  # where memory runs out nevertheless, this process ends, no other
            Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        return measure(case)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {"cross": f"out of memory (more than {values['memory_bytes'] / GIB:.3g} GiB)"}


def growth(rows: Sequence[Row], time: str) -> dict[str, dict[str, float]]:
    """Exponents of the kernel's memory and of the layer's time, as powers of the length.

    `law` is the exponent of sqrt(L) or L log L over the same lengths. Only subjects measured at
    three or more lengths.
    """
    found = {}
    for name, subject, mode, value, law in (
        ("memory of the kernel", "kernel", "inference", "peak_gib", math.sqrt),
        ("time of the layer, inference", "ssm", "inference", time, lambda n: n * math.log(n)),
        ("time of the layer, training", "ssm", "training", time, lambda n: n * math.log(n)),
    ):
        points = {
            row["length"]: row[value]
            for row in rows
            if (row["subject"], row["mode"]) == (subject, mode) and row.get(value, 0) > 0
        }
        if len(points) >= 3:
            found[name] = {
                "measured": fit_exponent(list(points), list(points.values())),
                "law": fit_exponent(list(points), [law(length) for length in points]),
            }
    return found


def header() -> str:
    """The table's header."""
    names = "".join(f"{name:>12}" for name, _ in COLUMNS.values())
    return f"{'what':24}{'mode':12}{'L':>8}{names}"


def as_table_line(row: Row) -> str:
    """One line of the table; a cross and its reason where there is no result."""
    start = f"{label(row):24}{row['mode']:12}{row['length']:8}"
    if "cross" in row:
        return f"{start}  × {row['cross']}"
    cells = (form.format(row[key]) if key in row else "" for key, (_, form) in COLUMNS.items())
    more = f"   {row['cpu_ratio']:.2f} of the feed-forward at B 4" if "cpu_ratio" in row else ""
    return start + "".join(f"{cell:>12}" for cell in cells) + more
