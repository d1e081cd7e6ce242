"""A corpus that every machine has: the documentation of Python and of the packages we require.

`python -m preprocessing.documentation --output DIR` writes pre-training text in C4's format, of
docstrings, and a summarisation set, from source files read with `ast` (nothing is imported). By
PEP 257 a docstring's first paragraph is its summary. The document to summarise is the rest of a
function's source, in words; with `--whole` the rest of the docstring and the docstrings of all that
is defined inside, such as a module's classes. Packages of the validation and test splits are left
out of the pre-training text.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain

from pipeline.files import replace_bytes, replace_json
from pipeline.progress import progress
from preprocessing.command_line import HelpFormatter, run_command
from preprocessing.functions import function_pairs
from preprocessing.python_sources import (
    TOPICS,
    Module,
    Pair,
    choose,
    docstrings,
    draw,
    find_modules,
    parse,
    parted,
    serves,
    skeleton,
    unwrap,
)

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements.txt"
TEXT_FILES = 8
PROCESSES = 2
HELD_OUT = {"test": 0.065, "validation": 0.045}  # shares of all pairs
WHOLE_HELD_OUT = {"test": 0.1, "validation": 0.05}  # of the fewer and longer pairs
LARGEST_SHARE = 0.015  # a package with more pairs is for training: it would fill a split alone
SHORTEST_WHOLE = 3000  # characters


def read_module(
    module: Module, whole: bool = False
) -> tuple[str, list[tuple[str, str]], list[Pair]]:
    """(package, [(url, text)] for pre-training, pairs) of one module.

    All of a module's docstrings are one text; each topic of the reference is a text of its own.
    Pairs are of functions, or of `whole` modules, classes and functions.
    """
    source = parse(module)
    found = docstrings(module, source)
    if module.package == TOPICS:
        return module.package, [(f"topics/{name}", unwrap(text)) for name, text in found], []
    everything = "\n".join(unwrap(text) for _, text in found)
    texts = [(module.name.replace(".", "/"), everything)] if everything else []
    pairs = whole_pairs(module.package, found) if whole else function_pairs(module, source)
    return module.package, texts, pairs


def passages(text: str, characters: int) -> list[str]:
    """The text cut at line ends into pieces of at least so many characters, the last of any."""
    pieces: list[list[str]] = [[]]
    for line in text.split("\n"):
        if sum(map(len, pieces[-1])) >= characters:
            pieces.append([])
        pieces[-1].append(line)
    return ["\n".join(lines) for lines in pieces]


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
    waiting = iter(sorted(small, key=draw))
    for split, share in held_out.items():
        filled = 0
        for package in waiting:
            splits[package] = split
            filled += sizes[package]
            if filled >= share * total:
                break
    return splits


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
        "(documentation-*.json.gz, C4's format) and a summarisation set of its functions "
        "(summaries-*.jsonl).",
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
        "least 3,000 characters; default: of functions, their source in words",
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
