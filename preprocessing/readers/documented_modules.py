"""One module of Python source as pre-training texts and as pairs of document and summary."""

from preprocessing.readers.functions import function_pairs
from preprocessing.readers.python_sources import (
    TOPICS,
    Module,
    Pair,
    docstrings,
    is_usable,
    parse,
    skeleton,
    split_docstring,
    unwrap,
)

SHORTEST_WHOLE = 3000  # characters of a document


def read_module(
    module: Module, whole: bool = False
) -> tuple[str, list[tuple[str, str]], list[Pair]]:
    """(package, [(url, text)] for pre-training, pairs) of one module.

    All of a module's docstrings are one text; each topic of the language reference is a text of its
    own. Pairs are of functions; with `whole`, of modules, classes and functions.
    """
    source = parse(module)
    found = docstrings(module, source)
    if module.package == TOPICS:
        return module.package, [(f"topics/{name}", unwrap(text)) for name, text in found], []
    everything = "\n".join(unwrap(text) for _, text in found)
    texts = [(module.name.replace(".", "/"), everything)] if everything else []
    pairs = whole_pairs(module.package, found) if whole else function_pairs(module, source)
    return module.package, texts, pairs


def whole_pairs(package: str, found: list[tuple[str, str]]) -> list[Pair]:
    """Pairs from [(qualified name, docstring)] whose document includes all nested docstrings.

    A document has at least SHORTEST_WHOLE characters and does not contain its summary.
    """
    pairs: dict[str, Pair] = {}
    for name, docstring in found:
        summary, rest = split_docstring(docstring)
        inner = [text for other, text in found if other.startswith(f"{name}.")]
        document = "\n".join(unwrap(text) for text in (rest, *inner))
        repeated = skeleton(summary) in skeleton(document)
        if len(document) >= SHORTEST_WHOLE and is_usable(summary) and not repeated:
            pairs.setdefault(name, Pair(name, package, document, summary))
    return list(pairs.values())
