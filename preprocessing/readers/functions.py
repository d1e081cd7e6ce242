"""Functions to summarise: the source of each as words, without the summary in its docstring.

Naming conventions join words (`write_file`, `RefactoringTool`); split, as is usual in source code
summarisation, they are the words that a summary is written in.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from preprocessing.readers.python_sources import (
    Module,
    Pair,
    Source,
    docstring,
    is_usable,
    skeleton,
    split_docstring,
    unwrap,
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IDENTIFIER = re.compile(r"[^\W\d]\w*")
# Between words: underscores, letters next to digits, capitals that begin a word.
BOUNDARY = re.compile(
    r"_+|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
)


@lru_cache(maxsize=1 << 16)
def words(name: str) -> str:
    """The words of an identifier: 'RefactoringTool' and 'refactoring_tool' give the same two."""
    return " ".join(filter(None, BOUNDARY.split(name))).lower()


def in_words(line: str) -> str:
    """A line of code as the words of its identifiers and keywords, separated by spaces."""
    return " ".join(part for name in IDENTIFIER.findall(line) if (part := words(name)))


def function_pairs(module: Module, source: Source | None) -> list[Pair]:
    """The summary of each documented function, and the rest of its source.

    The summary is the docstring's first paragraph (PEP 257). The document has the rest, one line
    each: the names of class and function, the signature, the rest of the docstring, the lines of
    the body with its comments. Functions whose document contains the summary are left out.
    """
    return list(_pairs(module, source)) if source else []


def method_titles(source: Source) -> dict[int, str]:
    """{id of a method's node: "Class method"}: a method's name alone says little."""
    return {
        id(child): f"{node.name} {child.name}"
        for node, _ in source.definitions
        if isinstance(node, ast.ClassDef)
        for child in node.body
        if isinstance(child, FUNCTIONS)
    }


def _pairs(module: Module, source: Source) -> Iterator[Pair]:
    found, titles = source.definitions, method_titles(source)
    excluded = {number for node, _ in found if docstring(node) for number in _lines(node.body[0])}
    for node, name in found:
        if not isinstance(node, FUNCTIONS) or not (text := docstring(node)):
            continue
        summary, rest = split_docstring(text)
        if not is_usable(summary):
            continue
        signature = range(node.lineno, node.body[0].lineno)
        body = range(node.body[0].lineno, 1 + (node.end_lineno or 0))
        lines = [
            words(titles.get(id(node), node.name)),
            in_words(" ".join(source.lines[number - 1] for number in signature)),
            unwrap(rest),
            *(in_words(source.lines[number - 1]) for number in body if number not in excluded),
        ]
        document = "\n".join(filter(None, lines)).encode(errors="ignore").decode()
        if skeleton(summary) not in skeleton(document):
            yield Pair(name, module.package, document, summary)


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, 1 + (node.end_lineno or 0))
