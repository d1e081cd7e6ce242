"""Sentence boundaries."""

from importlib.metadata import version
from typing import cast

from nupunkt import sent_tokenize

SPLITTER = f"newline, then nupunkt {version('nupunkt')}"


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, in order, none empty.

    A newline always ends a sentence (C4 keeps one paragraph a line); within a line nupunkt decides.
    """
    return [
        sentence
        for line in text.split("\n")
        if line.strip()
        for piece in cast(list[str], sent_tokenize(line))
        if (sentence := piece.strip())
    ]
