"""A corpus that every machine has: the documentation of Python and of the packages we require.

`python -m preprocessing.documentation --output DIR` writes pre-training text in C4's format and a
summarisation set, from docstrings read with `ast` (nothing is imported). By PEP 257 a docstring's
first paragraph is its summary; the rest is the document to summarise, with `--whole` together with
all that is defined inside, such as a module's classes. Packages of the validation and test splits
are left out of the pre-training text.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import ast
import gzip
import hashlib
import io
import json
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import chain

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.files import replace_bytes, replace_json
from pipeline.progress import progress
from preprocessing.command_line import HelpFormatter, run_command

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements.txt"
TEXT_FILES = 8
PROCESSES = 2
SEED = 0
# Folders that hold no documentation, or another package's.
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "_vendor"}
TOPICS = "pydoc_data"  # the language's reference: for pre-training only
HELD_OUT = {"test": 0.065, "validation": 0.045}  # shares of all pairs
WHOLE_HELD_OUT = {"test": 0.1, "validation": 0.05}  # of the fewer and longer pairs
LARGEST_SHARE = 0.015  # a package with more pairs is for training: it would fill a split alone
SHORTEST_DOCUMENT = 500  # characters
SHORTEST_WHOLE = 3000
SUMMARY_WORDS = (3, 60)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)  # nothing else holds definitions
# What begins a line of its own: list marks, prompts, fields, directives, described arguments.
NEW_LINE = re.compile(
    r"[-*+•] |\d+[.)] |>>>|\.\.\.|:\w|\.\. |\*{0,2}[\w.]+( \([^)]*\))?:( |$)|[\w.]+ (--|:) "
)


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
    """The installed distributions that a requirements file asks for, directly or not, by name.

    Development tools that merely stand beside them do not count.
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


def choose(modules: list[Module], count: int) -> list[Module]:
    """`count` modules drawn with a fixed seed, in the same order."""
    drawn = sorted(modules, key=lambda module: _draw(module.name))[:count]
    return sorted(drawn, key=lambda module: module.name)


def docstrings(module: Module) -> list[tuple[str, str]]:
    """(qualified name, cleaned docstring) of a module and all it defines, in its order.

    A file that does not parse, being meant for another Python, has none.
    """
    source = module.path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return []  # one-line docstrings at most: not worth the parsing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    if module.package == TOPICS:
        return list(_topics(tree))
    return list(_walk(tree, module.name))


def _walk(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    waiting: list[tuple[ast.AST, str]] = [(tree, name)]
    while waiting:
        node, name = waiting.pop()
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            # Half surrogate pairs are legal in Python's strings, not in files.
            yield name, text.encode(errors="ignore").decode()
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, STATEMENTS)]
        for child in reversed(inner):
            own = f"{name}.{child.name}" if isinstance(child, DOCUMENTED[1:]) else name
            waiting.append((child, own))


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The entries of `topics = {name: text, ...}` in pydoc_data.topics."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            yield from sorted(ast.literal_eval(statement.value).items())


def unwrap(text: str) -> str:
    """A text with each paragraph's hard-wrapped lines joined, one paragraph a line.

    Lines stay apart where the indentation changes and where NEW_LINE says so; rulers under
    headings go.
    """
    lines: list[str] = []
    indent = -1
    for line in text.expandtabs().splitlines():
        content = " ".join(line.split())
        if not content or re.fullmatch(r"([=~^\-*+#.`_])\1{2,}", content):
            indent = -1
            continue
        here = len(line) - len(line.lstrip())
        if here == indent and not NEW_LINE.match(content):
            lines[-1] += " " + content
        else:
            lines.append(content)
        indent = here
    return "\n".join(lines)


def read_module(
    module: Module, whole: bool = False
) -> tuple[str, list[tuple[str, str]], list[Pair]]:
    """(package, [(url, text)] for pre-training, pairs) of one module.

    All of a module's docstrings are one text; each topic of the reference is a text of its own.
    Pairs are of single docstrings, or of `whole` modules, classes and functions.
    """
    found = docstrings(module)
    if module.package == TOPICS:
        return module.package, [(f"topics/{name}", unwrap(text)) for name, text in found], []
    everything = "\n".join(unwrap(text) for _, text in found)
    texts = [(module.name.replace(".", "/"), everything)] if everything else []
    if whole:
        return module.package, texts, whole_pairs(module.package, found)
    pairs = [pair for name, text in found if (pair := make_pair(name, module.package, text))]
    return module.package, texts, pairs


def passages(text: str, characters: int) -> list[str]:
    """The text cut at line ends into pieces of at least so many characters, the last of any."""
    pieces: list[list[str]] = [[]]
    for line in text.split("\n"):
        if sum(map(len, pieces[-1])) >= characters:
            pieces.append([])
        pieces[-1].append(line)
    return ["\n".join(lines) for lines in pieces]


def make_pair(name: str, package: str, docstring: str) -> Pair | None:
    """PEP 257's reading of a docstring: first paragraph and the rest; None if it does not serve.

    The rest has at least 500 characters; the summary 3 to 60 words, and is no example or directive.
    """
    summary, rest = parted(docstring)
    if len(rest.strip()) < SHORTEST_DOCUMENT or not serves(summary):
        return None
    return Pair(name, package, unwrap(rest), summary)


def whole_pairs(package: str, found: list[tuple[str, str]]) -> list[Pair]:
    """Pairs whose document goes on with all that is defined inside: [(qualified name, docstring)].

    A document has at least 3,000 characters and does not say its summary again.
    """
    pairs: dict[str, Pair] = {}
    for name, docstring in found:
        summary, rest = parted(docstring)
        inner = [text for other, text in found if other.startswith(f"{name}.")]
        document = "\n".join(unwrap(text) for text in (rest, *inner))
        said_again = skeleton(summary) in skeleton(document)
        if len(document) >= SHORTEST_WHOLE and serves(summary) and not said_again:
            pairs.setdefault(name, Pair(name, package, document, summary))
    return list(pairs.values())


def parted(docstring: str) -> tuple[str, str]:
    """(summary, rest): the first paragraph in one line, and what follows it."""
    first, _, rest = docstring.strip().partition("\n\n")
    return " ".join(first.split()), rest


def serves(summary: str) -> bool:
    """Whether it has 3 to 60 words and is no example or directive."""
    low, high = SUMMARY_WORDS
    return low <= len(summary.split()) <= high and not summary.startswith((">>>", ".. "))


def without_duplicates(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs whose document (by its words) came up for the first time."""
    seen: set[str] = set()
    kept = []
    for pair in pairs:
        words = skeleton(pair.document)
        if words not in seen:
            seen.add(words)
            kept.append(pair)
    return kept


def split_packages(
    pairs: Iterable[Pair], held_out: Mapping[str, float] = HELD_OUT
) -> dict[str, str]:
    """{package: split}: packages in a seeded order fill test, then validation; the rest train."""
    sizes = Counter(pair.package for pair in pairs)
    total = sizes.total()
    small = [package for package in sizes if sizes[package] <= LARGEST_SHARE * total]
    splits = dict.fromkeys(sizes, "train")
    waiting = iter(sorted(small, key=_draw))
    for split, share in held_out.items():
        filled = 0
        for package in waiting:
            splits[package] = split
            filled += sizes[package]
            if filled >= share * total:
                break
    return splits


def skeleton(text: str) -> str:
    """The words of a text: what neither spacing, case, punctuation nor a tokenizer changes."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def leaked(pairs: list[Pair], texts: list[str]) -> set[str]:
    """Ids of the pairs whose summary or document occurs, letter for letter, in any of the texts.

    A passage that occurs brings its inner words with it whole, so one pass over the texts for
    three of them leaves few passages to search for.
    """
    passages = [(p.id, skeleton(passage)) for p in pairs for passage in (p.summary, p.document)]
    inner = {passage: tuple(passage.split()[1:-1][:3]) for _, passage in passages}
    wanted = {words for words in inner.values() if len(words) == 3}
    present: set[tuple[str, ...]] = set()
    everything = [skeleton(text) for text in texts]
    for text in everything:
        words = text.split()
        present.update(wanted.intersection(zip(words, words[1:], words[2:], strict=False)))
    suspects = [
        (name, passage)
        for name, passage in passages
        if len(inner[passage]) < 3 or inner[passage] in present
    ]
    haystack = "\n".join(everything)
    return {name for name, passage in suspects if passage in haystack}


def build(
    requirements: Path, limit_files: int | None, whole: bool = False, passage: int | None = None
) -> tuple[dict[str, bytes], dict[str, int]]:
    """({file name: content}, counts) of the whole corpus; pairs as `read_module` makes them.

    Texts are cut into passages of so many characters, those of one text in the same file.
    """
    modules = find_modules(requirements)
    if limit_files is not None:
        topics = [module for module in modules if module.package == TOPICS]
        modules = topics + choose([m for m in modules if m.package != TOPICS], limit_files)
    with ProcessPoolExecutor(PROCESSES) as pool:
        results = pool.map(partial(read_module, whole=whole), modules, chunksize=16)
        read = list(progress(results, len(modules), "Docstrings", "files"))
    found = list(chain.from_iterable(pairs for _, _, pairs in read))
    pairs = without_duplicates(found)
    splits = split_packages(pairs, WHOLE_HELD_OUT if whole else HELD_OUT)
    texts: dict[str, str] = {}  # text to url: the first of equal ones
    for package, module_texts, _ in read:
        if splits.get(package, "train") == "train":
            for url, text in module_texts:
                texts.setdefault(text, url)
    held_out = [pair for pair in pairs if splits[pair.package] != "train"]
    leaks = leaked(held_out, list(texts))
    files = {}
    counts = {
        "source_files": len(modules),
        "pairs_found": len(found),
        "pairs_duplicate": len(found) - len(pairs),
        "pairs_leaked": len(leaks),
        "texts": len(texts),
        "text_characters": sum(map(len, texts)),
        "packages": len(splits),
    }
    for split in ("train", *reversed(HELD_OUT)):
        kept = [p for p in pairs if splits[p.package] == split and p.id not in leaks]
        counts[f"pairs_{split}"] = len(kept)
        counts[f"packages_{split}"] = len({pair.package for pair in kept})
        records = [{"id": p.id, "document": p.document, "summary": p.summary} for p in kept]
        files[f"summaries-{split}.jsonl"] = _json_lines(records)
    if not all(counts[f"pairs_{split}"] for split in ("train", *HELD_OUT)):
        raise ValueError(
            f"{len(modules)} source files leave a split without pairs; give a larger --limit_files"
        )
    for number in range(TEXT_FILES):
        name = f"documentation-{number:05d}-of-{TEXT_FILES:05d}.json.gz"
        documents = [
            {
                "text": piece,
                "timestamp": "2000-01-01T00:00:00Z",
                "url": f"https://docs.invalid/{url}",
            }
            for text, url in list(texts.items())[number::TEXT_FILES]
            for piece in (passages(text, passage) if passage else [text])
        ]
        files[name] = _compress(_json_lines(documents))
    return files, counts


def _draw(name: str) -> bytes:
    """A place in a random order that depends on the name and the seed alone."""
    return hashlib.sha256(f"{SEED}:{name}".encode()).digest()


def _json_lines(records: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def _compress(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as file:
        file.write(content)
    return buffer.getvalue()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Write the documentation on this machine as pre-training text "
        "(documentation-*.json.gz, C4's format) and a summarisation set (summaries-*.jsonl).",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument(
        "--limit_files",
        type=int,
        help="read only this many source files, drawn with a fixed seed; default: all",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="pairs of whole modules, classes and functions with all that is defined inside, of at "
        "least 3,000 characters; default: of single docstrings",
    )
    parser.add_argument(
        "--passage_characters",
        type=int,
        help="cut pre-training texts at line ends into passages of at least so many characters, so "
        "that a short --source_length sees all of them; default: uncut",
    )
    options = parser.parse_args()
    for name in ("limit_files", "passage_characters"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ValueError(f"--{name} is {value}, expected at least 1")
    files, counts = build(
        REQUIREMENTS, options.limit_files, options.whole, options.passage_characters
    )
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_bytes(output / name, content)
    replace_json(output / "report.json", counts)
    print("\n".join(f"{name}: {count}" for name, count in counts.items()))


if __name__ == "__main__":
    run_command(main)
