"""What measurements in one table or ratio must share, and what each row of a table says of itself.

Systems differ in their kernels and in what they recompute: their rows say so. Everything else that
a time or a peak depends on is equal, or the table is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Measured = Mapping[str, Any]
"""A row of `benchmark.py systems`, or its file."""
SHARED = {
    "dtype": "{}",
    "batch": "batch {}",
    "tokens": "{} target tokens",
    "threads": "{} threads",
}
"""Settings of a row that all rows of a table share, and how they are shown."""
NOT_RECORDED = "not recorded"


def check_equal(files: Mapping[Path, Measured]) -> None:
    """Raise ValueError, naming two values and their files, where rows cannot be compared.

    All rows that ran have one device, the same library versions and the settings of `SHARED`.
    """
    first: dict[str, tuple[str, Path]] = {}
    for path, found in files.items():
        for name, value in _of_file(found):
            known, where = first.setdefault(name, (value, path))
            if known != value:
                both = (
                    f"both in {path}"
                    if where == path
                    else f"the one in {where}, the other in {path}"
                )
                raise ValueError(
                    f"measurements of {name} {known} and of {name} {value} are not compared "
                    f"({both}); give --systems files of one of them"
                )


def _of_file(found: Measured) -> Iterator[tuple[str, str]]:
    yield "device", str(found.get("device", NOT_RECORDED))
    yield from versions(found).items()
    for row in found["rows"]:
        if "cross" in row:  # it has no figure
            continue
        for name in SHARED:
            yield name, str(row.get(name, NOT_RECORDED))


def versions(found: Measured) -> dict[str, str]:
    """The versions of the libraries that a file records."""
    torch = {"torch": str(found.get("torch", NOT_RECORDED))}
    return torch | {name: str(version) for name, version in found.get("versions", {}).items()}


def shared_words(device: str, rows: Iterable[Measured]) -> str:
    """The device and the settings that all rows share, in words."""
    rows = list(rows)
    words = [device]
    for name, form in SHARED.items():
        found = {row.get(name) for row in rows if "cross" not in row}
        if len(found) == 1 and None not in found:
            words.append(form.format(*found))
    return ", ".join(words)


def kernel_words(rows: Iterable[Measured]) -> str:
    """The kernels of some rows."""
    return _distinct(rows, "kernel")


def precision_words(rows: Iterable[Measured]) -> str:
    """The precision of some rows."""
    return _distinct(rows, "dtype")


def recomputation_words(rows: Iterable[Measured]) -> str:
    """Whether some rows recompute activations."""
    again = any(recomputes(row) for row in rows if "cross" not in row)
    return "recomputed in training" if again else "nothing recomputed"


def _distinct(rows: Iterable[Measured], name: str) -> str:
    called = {"dtype": "precision"}.get(name, name)
    ran = (row for row in rows if "cross" not in row)
    return " or ".join(dict.fromkeys(str(row.get(name, f"{called} not recorded")) for row in ran))


def recomputes(row: Measured) -> bool:
    """Whether activations were recomputed; files of earlier versions do with every saving."""
    earlier = row["mode"] == "training" and row.get("memory") == "saving"
    return bool(row.get("recomputation", earlier))
