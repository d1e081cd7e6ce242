"""Which words a summary has from its own document, and a text in which they are marked."""

import keyword
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.evaluation.page import escape
from preprocessing.gap_sentences import STOPWORDS, rouge_words

Words = frozenset[str]

# Code says these whatever it is about, and so do summaries of it.
CODE_WORDS = frozenset(map(str.lower, keyword.kwlist)) | {"self", "returns"}
# In an escaped text an ampersand always begins a sign's name or number, which is no word.
SIGN_OR_WORD = re.compile(r"&#?\w+;|[A-Za-z0-9]+")


def content_words(text: str) -> Words:
    """The words that ROUGE compares, without single characters, stop words and Python's own."""
    found = (word.decode() for word in rouge_words(text) if word not in STOPWORDS)
    return frozenset(word for word in found if len(word) > 1 and word not in CODE_WORDS)


@dataclass(frozen=True)
class Use:
    """By document, the summary's content words that stand in one of two documents alone."""

    own: list[Words]
    """In the document that was summarised, not in the exchanged one."""
    exchanged: list[Words]
    """In the exchanged one, not in its own: what a summary has of any document, by chance."""


def find_use(summaries: Sequence[str], documents: Sequence[str], donors: Sequence[int]) -> Use:
    """Words that both documents have are in neither list, as they tell the two apart in no way.

    `donors` are the indices of the documents that are exchanged for each.
    """
    said, known = list(map(content_words, summaries)), list(map(content_words, documents))
    beside = [known[donor] for donor in donors]
    return Use(
        [summary & own - other for summary, own, other in zip(said, known, beside, strict=True)],
        [summary & other - own for summary, own, other in zip(said, known, beside, strict=True)],
    )


def share(found: Sequence[Words]) -> float:
    """How many of the documents have any such word, in percent."""
    return 100 * sum(map(bool, found)) / len(found)


def mark(text: str, words: Collection[str]) -> str:
    """The text escaped for Markdown, these words, in any case, between <mark> and </mark>."""

    def marked(match: re.Match[str]) -> str:
        found = match.group()
        return f"<mark>{found}</mark>" if found.lower() in words else found

    return SIGN_OR_WORD.sub(marked, escape(text))


def beginning(text: str, most: int) -> str:
    """At most so many characters of the text on one line, cut after a word; … says that it was."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    whole_words, space, _ = line[: most + 1].rpartition(" ")
    return (whole_words if space else line[:most]) + " …"
