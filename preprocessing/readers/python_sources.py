"""The Python source files of this machine and their documentation, read with `ast`.

Nothing is imported or run.
"""

import ast
import hashlib
import io
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SEED = 0
# Folders without documentation of their package.
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "_vendor"}
TOPICS = "pydoc_data"  # the language reference, a package without functions
SUMMARY_WORDS = (3, 60)
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)  # nothing else holds definitions
# Starts of lines that are not joined to the one before: list marks, prompts, fields, directives,
# described arguments.
NEW_LINE = re.compile(
    r"[-*+•] |\d+[.)] |>>>|\.\.\.|:\w|\.\. |\*{0,2}[\w.]+( \([^)]*\))?:( |$)|[\w.]+ (--|:) "
)
RULER = re.compile(r"([=~^\-*+#.`_])\1{2,}")  # under a heading


@dataclass(frozen=True)
class Module:
    """One source file: its top-level package and its dotted name."""

    path: Path
    package: str
    name: str


@dataclass(frozen=True)
class Pair:
    """One docstring with a summary and enough left to summarise."""

    id: str
    package: str
    document: str
    summary: str


def required_distributions(requirements: Path) -> list[metadata.Distribution]:
    """The installed distributions that a requirements file needs, directly or not, by name.

    Other installed packages, such as development tools, do not count.
    """
    lines = [line.split("#")[0].strip() for line in requirements.read_text().splitlines()]
    to_visit = [Requirement(line) for line in lines if line]
    found: dict[str, metadata.Distribution] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    while to_visit:
        requirement = to_visit.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in visited:
            continue
        visited.add((name, extras))
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform, or not installed yet
        for line in found[name].requires or []:
            needed = Requirement(line)
            environments = [{"extra": extra} for extra in extras or {""}]
            if needed.marker is None or any(map(needed.marker.evaluate, environments)):
                to_visit.append(needed)
    return [found[name] for name in sorted(found)]


def find_modules(requirements: Path) -> list[Module]:
    """Source files of the standard library and the required distributions, sorted by name."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [(path.relative_to(library), path) for path in library.rglob("*.py")]
    for distribution in required_distributions(requirements):
        for file in distribution.files or []:
            if file.suffix == ".py" and ".." not in file.parts:
                files.append((Path(file), Path(str(distribution.locate_file(file)))))
    modules: dict[str, Module] = {}
    for relative, path in files:
        if SKIPPED_FOLDERS.isdisjoint(relative.parts) and path.is_file():
            parts = relative.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)
            modules.setdefault(name, Module(path, parts[0], name))
    return [modules[name] for name in sorted(modules)]


def sample_modules(modules: list[Module], count: int) -> list[Module]:
    """`count` modules sampled with a fixed seed, in their original order."""
    sample = sorted(modules, key=lambda module: random_key(module.name))[:count]
    return sorted(sample, key=lambda module: module.name)


@dataclass(frozen=True)
class Source:
    """A parsed file: its lines, which the tree numbers from 1, and its definitions."""

    tree: ast.Module
    lines: list[str]
    definitions: list[tuple[Definition, str]]


def parse(module: Module) -> Source | None:
    """None where this Python cannot parse the file, or no docstring has several lines."""
    source = module.path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return None  # no triple quotes: at most one-line docstrings
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = io.TextIOWrapper(io.BytesIO(source), encoding, newline=None).read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return Source(tree, text.split("\n"), list(definitions(tree, module.name)))


def definitions(tree: ast.Module, name: str) -> Iterator[tuple[Definition, str]]:
    """(node, qualified name) of a module and all its classes and functions, in source order."""
    waiting: list[tuple[ast.AST, str]] = [(tree, name)]
    while waiting:
        node, name = waiting.pop()
        if isinstance(node, Definition):
            yield node, name
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, STATEMENTS)]
        for child in reversed(inner):
            qualified = (
                f"{name}.{child.name}"
                if isinstance(child, Definition) and not isinstance(child, ast.Module)
                else name
            )
            waiting.append((child, qualified))


def docstrings(module: Module, source: Source | None) -> list[tuple[str, str]]:
    """(qualified name, cleaned docstring) of a module and all its definitions, in source order."""
    if source is None:
        return []
    if module.package == TOPICS:
        return list(_topics(source.tree))
    return [(name, text) for node, name in source.definitions if (text := docstring(node))]


def docstring(node: Definition) -> str:
    """The cleaned docstring of a definition, empty where it has none."""
    text = ast.get_docstring(node) or ""
    # Half surrogate pairs are legal in Python's strings, not in files.
    return text.encode(errors="ignore").decode()


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The entries of `topics = {name: text, ...}` in pydoc_data.topics."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            yield from sorted(ast.literal_eval(statement.value).items())


def unwrap(text: str) -> str:
    """A text with each paragraph's hard-wrapped lines joined, one paragraph per line.

    Lines are not joined where the indentation changes or NEW_LINE matches; rulers under headings
    are dropped.
    """
    lines: list[str] = []
    indent = -1
    for line in text.expandtabs().splitlines():
        content = " ".join(line.split())
        if not content or RULER.fullmatch(content):
            indent = -1
            continue
        here = len(line) - len(line.lstrip())
        if here == indent and not NEW_LINE.match(content):
            lines[-1] += " " + content
        else:
            lines.append(content)
        indent = here
    return "\n".join(lines)


def split_docstring(docstring: str) -> tuple[str, str]:
    """(summary, rest): the first paragraph in one line, and the text after it."""
    first, _, rest = docstring.strip().partition("\n\n")
    return " ".join(first.split()), rest


def is_usable(summary: str) -> bool:
    """Whether a summary has 3 to 60 words and is not an example or directive."""
    low, high = SUMMARY_WORDS
    return low <= len(summary.split()) <= high and not summary.startswith((">>>", ".. "))


def skeleton(text: str) -> str:
    """The words of a text, which spacing, case, punctuation and tokenizers leave unchanged."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def random_key(name: str) -> bytes:
    """A sort key for a random order that depends only on the name and the seed."""
    return hashlib.sha256(f"{SEED}:{name}".encode()).digest()
