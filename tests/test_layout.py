"""The layout: sizes, names and docstrings of files, and the README's map of the folders."""

import ast
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES = 400
CODE = ("pipeline", "preprocessing")


def sources(*folders: str) -> list[Path]:
    """All Python files and shell scripts below these folders."""
    found = (path for name in folders for path in (ROOT / name).rglob("*"))
    return sorted(path for path in found if path.suffix in (".py", ".sh"))


def rooms() -> list[str]:
    """The folders of CODE that hold Python files, from the root."""
    return sorted({str(path.parent.relative_to(ROOT)) for path in sources(*CODE)})


def one_letter_apart(a: str, b: str) -> bool:
    """Whether one letter replaced, left out or added makes one name the other."""
    if abs(len(a) - len(b)) > 1:
        return False
    same = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if same is None:
        return True
    return a[same + 1 :] == b[same + 1 :] or a[same:] == b[same + 1 :] or a[same + 1 :] == b[same:]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("model", "models", True), ("plan", "plat", True), ("plan", "pan", True),
        ("data", "dates", False), ("run", "nur", False), ("a", "ba", True),
    ],
)  # fmt: skip
def test_one_letter_apart(a, b, expected):
    assert one_letter_apart(a, b) == one_letter_apart(b, a) == expected


def test_no_file_is_long():
    files = sources(*CODE, "tests", "slurm")
    assert len(files) > 200
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}
    assert {name: length for name, length in lengths.items() if length > LINES} == {}


@pytest.mark.parametrize("room", rooms())
def test_names_of_modules_differ_by_more_than_a_letter(room):
    names = {
        path.stem
        for path in (ROOT / room).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert [pair for pair in combinations(sorted(names), 2) if one_letter_apart(*pair)] == []


def test_no_class_name_is_defined_twice():
    names = Counter(
        node.name
        for path in sources(*CODE)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 50
    assert [name for name, count in names.items() if count > 1] == []


def test_every_module_has_a_docstring():
    modules = [path for path in sources(*CODE, "tests") if path.suffix == ".py"]
    undescribed = [str(p) for p in modules if not ast.get_docstring(ast.parse(p.read_text()))]
    assert undescribed == []


@pytest.mark.parametrize("room", rooms())
def test_every_folder_is_a_package_and_stands_in_the_readme(room):
    assert (ROOT / room / "__init__.py").is_file()
    assert f"`{room}/`" in (ROOT / "README.md").read_text()
