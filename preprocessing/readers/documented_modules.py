"""One module of Python source as pre-training texts and as pairs of document and summary."""

from dataclasses import dataclass

from preprocessing.readers.functions import function_pairs
from preprocessing.readers.python_sources import (
    TOPICS,
    Module,
    Pair,
    docstrings,
    parse,
    unwrap,
)
from preprocessing.readers.whole_sources import whole_pairs


@dataclass(frozen=True)
class Documented:
    """What one module documents: pre-training texts as (url, text), and pairs.

    `parts` are pairs to train on besides: never validation's or test's.
    """

    package: str
    texts: list[tuple[str, str]]
    pairs: list[Pair]
    parts: list[Pair]


def read_module(module: Module, whole: bool = False) -> Documented:
    """The texts and pairs of one module.

    All of a module's docstrings are one text; each topic of the language reference is a text of its
    own. Pairs are of functions; with `whole`, of whole modules and classes, and parts are those of
    functions, and of shorter modules and classes.
    """
    source = parse(module)
    found = docstrings(module, source)
    if module.package == TOPICS:
        topics = [(f"topics/{name}", unwrap(text)) for name, text in found]
        return Documented(module.package, topics, [], [])
    everything = "\n".join(unwrap(text) for _, text in found)
    texts = [(module.name.replace(".", "/"), everything)] if everything else []
    if not whole:
        return Documented(module.package, texts, function_pairs(module, source), [])
    return Documented(module.package, texts, *whole_pairs(module, source))
