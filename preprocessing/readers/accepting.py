"""The user's own test of a document, `--accept MODULE:FUNCTION`, and the digest of its source."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

NEVER_FALSE = (  # what these return is true, whatever happens in them
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)
Accept = Callable[[str, str], bool]


def load_function(name: str) -> tuple[Accept, str]:
    """`accept(text, url)`, and its name with a digest of the source that defines it.

    The digest covers the file of its module, or all modules of its package; not other packages,
    nor files that it reads. Raises ValueError where there is no such function; so does a call in
    which it fails.
    """
    module_name, _, function = name.partition(":")
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, function or "no function named")
    except (Exception, SystemExit) as error:  # importing a user's module may raise anything
        raise ValueError(
            f"--accept {name}: {type(error).__name__}: {error}; expected MODULE:FUNCTION that "
            "Python can import (see PYTHONPATH)"
        ) from None
    if not callable(found):
        raise ValueError(f"--accept {name} is not a function")
    if any(test(found) for test in NEVER_FALSE):
        raise ValueError(f"--accept {name} does not return true or false; give a plain function")

    def accept(text: str, url: str) -> bool:
        try:
            return bool(found(text, url))
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"--accept {name} failed on the document {url or text[:60]!r}: "
                f"{type(error).__name__}: {error}"
            ) from error

    return accept, f"{name}, sha256 {_digest(module, found)}"


def _digest(module: ModuleType, function: Any) -> str:
    """The digest of the source of the modules that name and define a function."""
    defining = sys.modules.get(str(getattr(function, "__module__", None)), module)
    files = {file for one in (module, defining) for file in _sources(one)}
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: (file.name, str(file))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sources(module: ModuleType) -> list[Path]:
    """The file of a module, or all modules of its package; none of one built into Python."""
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    file = getattr(package, "__file__", None) or getattr(module, "__file__", None)
    if file is None:
        return []
    path = Path(file)
    return sorted(path.parent.rglob("*.py")) if hasattr(package, "__path__") else [path]
