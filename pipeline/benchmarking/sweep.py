"""Measurements over lengths, each in a fresh process, so that a peak is that of one case alone."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pipeline.benchmarking.cases import Case, measure, needed_bytes
from pipeline.benchmarking.meter import GIB, device_name, is_out_of_memory, limit_memory
from pipeline.files import replace_json
from pipeline.model.memory import available_memory

Row = dict[str, Any]
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
    """Measure the cases, print a table as it grows; COMMAND.json and COMMAND.png in `output`."""
    written, figure = (output / f"{command}.{kind}" for kind in ("json", "png"))
    results = measure_all(
        command, cases, device, written,
        lambda case, _: measure_apart(case, limit_s, memory_bytes),
    )  # fmt: skip
    rows, time = results["rows"], time_field(device)
    results["growth"] = growth(rows, time)
    for name, power in results["growth"].items():
        print(f"{name}: as L^{power['measured']:.2f} (its law over these: {power['law']:.2f})")
    replace_json(written, results)
    from pipeline.benchmarking.figures import draw  # needs more than a GPU node may have

    fast = {time: COLUMNS[time][0]} if command == "layer" else {"tokens_per_s": "tokens/s"}
    draw(rows, {**fast, "peak_gib": "peak GiB"}, figure)
    print(f"{written}, {figure}")


def measure_all(
    command: str,
    cases: Iterable[Case],
    device: torch.device,
    written: Path,
    measure: Callable[[Case, Sequence[Row]], Row],
) -> dict[str, Any]:
    """The command's results, in the file `written` as they come and printed as a table.

    `measure` is given a case and the rows before it.
    """
    cases = list(cases)  # an impossible one is an error before anything is written
    rows: list[Row] = []
    results: dict[str, Any] = {
        "command": command, "device": device_name(device), "torch": torch.__version__, "rows": rows,
    }  # fmt: skip
    written.parent.mkdir(parents=True, exist_ok=True)
    print(header(), flush=True)
    for case in cases:
        rows.append(measure(case, rows))
        print(as_table_line(rows[-1]), flush=True)
        replace_json(written, results)  # a sweep that is cut short still leaves what it found
    return results


def time_field(device: torch.device) -> str:
    """The time to compare: others use a CPU's cores too."""
    return "cpu_s" if device.type == "cpu" else "wall_s"


def measure_apart(case: Case, limit_s: float, memory_bytes: int | None) -> Row:
    """The case's fields and its `measure` in a process of its own, or a `cross`: why not.

    Refused beforehand where it is known to need more than `memory_bytes` (None: what is
    available); ended past `limit_s` seconds, or where an allocation goes past that memory.
    Raises ValueError for an impossible case, RuntimeError where the process broke.
    """
    row = asdict(case)
    memory = available_memory(torch.device(case.device)) if memory_bytes is None else memory_bytes
    needed = needed_bytes(case)
    if needed > memory:
        cross = f"does not fit (needs {needed / GIB:.1f} GiB of {memory / GIB:.1f})"
        return {**row, "cross": cross, "needed_gib": needed / GIB}
    request = json.dumps({"case": row, "memory_bytes": memory})
    command = [sys.executable, str(PROGRAM), "measure", request]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {**row, "cross": f"over {limit_s:g} s"}
    if done.returncode == 2:
        raise ValueError(done.stderr.strip().removeprefix("error: "))
    if done.returncode == -9:
        return {**row, "cross": "out of memory (ended by the system)"}
    if done.returncode:
        raise RuntimeError(f"measuring {case.subject} failed:\n{done.stderr}")
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


def measure_here(request: str) -> Row:
    """The other end of `measure_apart`: the result, or a cross where memory ran out."""
    values = json.loads(request)
    case = Case(**values["case"])
    if torch.device(case.device).type == "cpu":
        limit_memory(values["memory_bytes"])
    try:
        return measure(case)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {"cross": f"out of memory (more than {values['memory_bytes'] / GIB:.3g} GiB)"}


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The power of the length that fits best: the slope of log values over log lengths."""
    x, y = ([math.log(value) for value in some] for some in (lengths, values))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def growth(rows: Sequence[Row], time: str) -> dict[str, dict[str, float]]:
    """How the kernel's memory and the layer's time grow, as powers of the length.

    Beside each the power expected over the same lengths: that of sqrt(L), that of L log L. Of
    subjects measured at three lengths or more.
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
                "measured": exponent(list(points), list(points.values())),
                "law": exponent(list(points), [law(length) for length in points]),
            }
    return found


def label(row: Row) -> str:
    """What is measured, in words: the line of a figure."""
    if row["subject"] == "decode":
        return f"{row['form']}, {row['beams']} beam{'s' if row['beams'] > 1 else ''}"
    if row["memory"] == "saving":
        return f"{row['subject']}, saving"
    return row["subject"] if row["batch"] == 1 else f"{row['subject']} B {row['batch']}"


def header() -> str:
    """Of the table."""
    names = "".join(f"{name:>12}" for name, _ in COLUMNS.values())
    return f"{'what':24}{'mode':12}{'L':>8}{names}"


def as_table_line(row: Row) -> str:
    """One line of the table; a cross where there is no result."""
    start = f"{label(row):24}{row['mode']:12}{row['length']:8}"
    if "cross" in row:
        return f"{start}  × {row['cross']}"
    cells = (form.format(row[key]) if key in row else "" for key, (_, form) in COLUMNS.items())
    more = f"   {row['cpu_ratio']:.2f} of the feed-forward at B 4" if "cpu_ratio" in row else ""
    return start + "".join(f"{cell:>12}" for cell in cells) + more
