"""One module of Python source as pre-training texts and as pairs of document and summary."""

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


def read_module(
    module: Module, whole: bool = False
) -> tuple[str, list[tuple[str, str]], list[Pair]]:
    """(package, [(url, text)] for pre-training, pairs) of one module.

    All of a module's docstrings are one text; each topic of the language reference is a text of its
    own. Pairs are of functions; with `whole`, of whole modules and classes.
    """
    source = parse(module)
    found = docstrings(module, source)
    if module.package == TOPICS:
        return module.package, [(f"topics/{name}", unwrap(text)) for name, text in found], []
    everything = "\n".join(unwrap(text) for _, text in found)
    texts = [(module.name.replace(".", "/"), everything)] if everything else []
    return module.package, texts, (whole_pairs if whole else function_pairs)(module, source)
