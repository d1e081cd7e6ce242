"""Sentence splitters beside ours: speed on C4, and what they get right (docs/sentences.md)."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from preprocessing.corpora import Item, find_inputs, read_c4
from preprocessing.sentences import SPLITTER, split_sentences

Split = Callable[[str], Sequence[str]]

CASES = Path(__file__).with_name("sentence_cases.txt")
SLOW = {"syntok": 10, "segtok": 10, "pysbd": 50}  # timed on every 10th, 50th document
SEEN = 300  # characters on either side of a line end that was taken out


def splitters() -> tuple[dict[str, Split], list[str]]:
    """Ours and each other that is installed, by name and version; and the names of the rest."""
    found: dict[str, Split] = {f"ours ({SPLITTER})": split_sentences}
    missing = []
    makers: dict[str, tuple[str, Callable[[Any], Split]]] = {
        "nupunkt": ("nupunkt", lambda module: module.sent_tokenize),
        "nupunkt-rs": ("nupunkt_rs", lambda module: module.sent_tokenize),
        "sentencex": ("sentencex", lambda module: lambda line: list(module.segment("en", line))),
        "blingfire": (
            "blingfire", lambda module: lambda line: module.text_to_sentences(line).split("\n"),
        ),
        "syntok": ("syntok.segmenter", _syntok),
        "segtok": ("segtok.segmenter", lambda module: lambda line: list(module.split_single(line))),
        "pysbd": ("pysbd", lambda module: module.Segmenter(language="en", clean=False).segment),
    }  # fmt: skip
    for name, (module, maker) in makers.items():
        try:
            split = maker(import_module(module))
        except ImportError:
            missing.append(name)
        else:
            found[f"{name} {version(name)}"] = _by_line(split)
    return found, missing


def measure(name: str, split: Split, documents: Sequence[str], books: Sequence[str]) -> Any:
    """One splitter's row: CPU time over the documents (texts of C4), once, and what it gets right.

    `cases`: tricky texts split exactly right. `line_ends_found`: of the ends of lines of C4 (a
    line is a paragraph, so it ends a sentence) that end in a terminator, with the line end
    replaced by a space, the share where it splits. `lost`: documents of which a character is lost.
    `longest`: words of the longest sentence of the books.
    """
    some = documents[:: SLOW.get(name.split()[0], 1)]
    split("Warm up. Then run.")
    began = time.process_time()
    sentences = [split(text) for text in some]
    seconds = time.process_time() - began
    joints = list(_joints(some))
    return {
        "splitter": name,
        "microseconds": 1e6 * seconds / len(some),
        "megabytes_per_s": sum(len(text.encode()) for text in some) / seconds / 1e6,
        "sentences": sum(map(len, sentences)) / len(some),
        "cases": sum(_words(split(text)) == _words(expected) for text, expected in cases()),
        "line_ends_found": sum(_ends_at(split, *joint) for joint in joints) / max(len(joints), 1),
        "lost": sum(_solid(t) != _solid("".join(s)) for t, s in zip(some, sentences, strict=True)),
        "longest": max(
            (len(s.split()) for book in books for s in split(_unwrapped(book))), default=0
        ),
    }


def run(patterns: Sequence[str], books: Sequence[str]) -> dict[str, Any]:
    """Print the table as it grows. Raises ValueError where --input holds no documents."""
    entries = chain.from_iterable(read_c4(Item(path)) for path in find_inputs(patterns))
    documents = [entry.record["text"] for entry in entries if not isinstance(entry.record, str)]
    if not documents:
        raise ValueError(f"{', '.join(patterns)} holds no documents in C4's format")
    novels = [path.read_text(errors="replace") for path in find_inputs(books)] if books else []
    total = len(cases())
    print(
        f"{'':34}{'us a doc.':>10}{'MB/s':>7}{'sentences':>11}{'cases':>8}{'line ends':>11}"
        f"{'lost':>6}{'longest':>9}"
    )
    rows = []
    found, missing = splitters()
    for name, split in found.items():
        rows.append(row := measure(name, split, documents, novels))
        right = f"{row['cases']}/{total}"
        print(
            f"{name:34}{row['microseconds']:10.1f}{row['megabytes_per_s']:7.1f}"
            f"{row['sentences']:11.2f}{right:>8}{row['line_ends_found']:11.1%}{row['lost']:6}"
            f"{row['longest']:9}",
            flush=True,
        )
    if missing:
        print(f"not installed: {', '.join(missing)}")
    return {"documents": len(documents), "cases": total, "rows": rows}


def cases() -> list[tuple[str, list[str]]]:
    """(text, its sentences) of the tricky cases."""
    lines = CASES.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line and not line.startswith("#")]
    return [(line.replace("|", " "), line.split("|")) for line in kept]


def _by_line(split: Split) -> Split:
    """As ours: a newline always ends a sentence."""
    return lambda text: list(
        chain.from_iterable(split(line) for line in text.split("\n") if line.strip())
    )


def _syntok(module: Any) -> Split:
    return lambda line: [
        "".join(token.spacing + token.value for token in sentence)
        for paragraph in module.analyze(line)
        for sentence in paragraph
    ]


def _joints(documents: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in documents:
        lines = [line.strip() for line in text.split("\n")]
        for line, following in pairwise(line for line in lines if line[-1:] and line[-1] in '.!?"'):
            yield line[-SEEN:], following[:SEEN]


def _ends_at(split: Split, before: str, after: str) -> bool:
    """Whether a sentence ends where two texts are joined by a space."""
    length, end = 0, len(_solid(before))
    for sentence in split(f"{before} {after}"):
        length += len(_solid(sentence))
        if length >= end:
            break
    return length == end


def _unwrapped(book: str) -> str:
    """One paragraph a line."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", book.replace("\r", ""))


def _solid(text: str) -> str:
    return "".join(text.split())


def _words(sentences: Sequence[str]) -> list[list[str]]:
    return [words for sentence in sentences if (words := sentence.split())]
