"""Whole modules and classes to summarise: the source as words, without the prose that its docstring
begins with, which is the summary."""

import ast
import re
from collections.abc import Iterator

from preprocessing.readers.functions import FUNCTIONS, in_words, method_titles, words
from preprocessing.readers.python_sources import (
    NEW_LINE,
    RULER,
    Definition,
    Module,
    Pair,
    Source,
    docstring,
    skeleton,
    unwrap,
)

SUMMARY_WORDS = (15, 100)
CHARACTERS = (3_000, 64_000)  # of a document: about 1K to 16K tokens
SHORTEST_PART = 300  # characters of a document that only trains


def whole_pairs(module: Module, source: Source | None) -> tuple[list[Pair], list[Pair]]:
    """(pairs, parts): a pair of each module and class that has enough of both, and pairs of the
    same form to train on besides, of functions and of shorter modules and classes.

    The document has the name, the rest of the docstring, then all lines of the source with their
    comments and inner docstrings, as words. It does not contain the summary.
    """
    pairs: list[Pair] = []
    parts: list[Pair] = []
    for node, pair in _pairs(module, source) if source else ():
        is_part = isinstance(node, FUNCTIONS) or len(pair.document) < CHARACTERS[0]
        (parts if is_part else pairs).append(pair)
    return pairs, parts


def leading_prose(text: str) -> tuple[str, str]:
    """(summary, rest): the paragraphs that a docstring begins with, up to the first that is not
    prose (a list, an example, a heading) or would make it longer than SUMMARY_WORDS."""
    paragraphs = re.split(r"\n\s*\n", text.strip()) if text.strip() else []
    kept: list[str] = []
    for paragraph in paragraphs:
        together = [*kept, " ".join(paragraph.split())]
        longest = len(" ".join(together).split()) > SUMMARY_WORDS[1]
        if not _is_prose(paragraph) or longest:
            break
        kept = together
    return " ".join(kept), "\n\n".join(paragraphs[len(kept) :])


def _is_prose(paragraph: str) -> bool:
    lines = paragraph.splitlines()
    if lines[0].startswith((" ", "\t")) or paragraph.rstrip().endswith(":"):
        return False
    stripped = [line.strip() for line in lines]
    return not any(NEW_LINE.match(line) or RULER.fullmatch(line) for line in stripped)


def _pairs(module: Module, source: Source) -> Iterator[tuple[Definition, Pair]]:
    titles = method_titles(source)
    for node, name in source.definitions:
        summary, rest = leading_prose(docstring(node))
        if not SUMMARY_WORDS[0] <= len(summary.split()) <= SUMMARY_WORDS[1]:
            continue
        own = node.body[0]
        if isinstance(node, ast.Module):  # what precedes the docstring is a licence
            title, numbers = name, range(own.lineno, 1 + len(source.lines))
        else:
            title = titles.get(id(node), node.name)
            numbers = range(node.lineno, 1 + (node.end_lineno or 0))
        inside = range(own.lineno, 1 + (own.end_lineno or 0))
        lines = [
            words(title.replace(".", "_")),
            unwrap(rest),
            *(in_words(source.lines[number - 1]) for number in numbers if number not in inside),
        ]
        document = "\n".join(filter(None, lines)).encode(errors="ignore").decode()
        fits = SHORTEST_PART <= len(document) <= CHARACTERS[1]
        if fits and skeleton(summary) not in skeleton(document):
            yield node, Pair(name, module.package, document, summary)
