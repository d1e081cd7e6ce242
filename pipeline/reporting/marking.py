"""Words that a summary takes from its own document, and texts with such words marked."""

import keyword
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.common.html import escape
from pipeline.common.words import STOPWORDS, rouge_words

Words = frozenset[str]

# Words of any code, whatever it is about, and of summaries of it.
CODE_WORDS = frozenset(map(str.lower, keyword.kwlist)) | {"self", "returns"}
# In an escaped text an ampersand always begins a character reference, which is not a word.
REFERENCE_OR_WORD = re.compile(r"&#?\w+;|[A-Za-z0-9]+")


def content_words(text: str) -> Words:
    """The words that ROUGE compares, without single characters, stop words and keywords."""
    found = (word.decode() for word in rouge_words(text) if word not in STOPWORDS)
    return frozenset(word for word in found if len(word) > 1 and word not in CODE_WORDS)


@dataclass(frozen=True)
class Use:
    """For each document, the summary's content words that only one of two documents has."""

    own: list[Words]
    """In the summarised document and not in the permuted one."""
    permuted: list[Words]
    """In the permuted document and not in its own: words shared by chance."""


def find_use(summaries: Sequence[str], documents: Sequence[str], donors: Sequence[int]) -> Use:
    """Words taken from either document alone; words of both do not tell the two apart.

    `donors`: for each document, the index of the one that replaces it in `permuted`.
    """
    said, known = list(map(content_words, summaries)), list(map(content_words, documents))
    others = [known[donor] for donor in donors]
    return Use(
        [summary & own - other for summary, own, other in zip(said, known, others, strict=True)],
        [summary & other - own for summary, own, other in zip(said, known, others, strict=True)],
    )


def share(found: Sequence[Words]) -> float:
    """Percent of the documents with at least one such word."""
    return 100 * sum(map(bool, found)) / len(found)


def mark(text: str, words: Collection[str]) -> str:
    """The text escaped for Markdown, with these words (in any case) between <mark> and </mark>."""

    def marked(match: re.Match[str]) -> str:
        found = match.group()
        return f"<mark>{found}</mark>" if found.lower() in words else found

    return REFERENCE_OR_WORD.sub(marked, escape(text))


def beginning(text: str, most: int) -> str:
    """At most `most` characters of the text on one line, cut after a word; … shows the cut."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    whole_words, space, _ = line[: most + 1].rpartition(" ")
    return (whole_words if space else line[:most]) + " …"
