"""Rules of C4 and Gopher for the quality of a web page's text, as published.

A page is left out for the first rule that it breaks; C4's rules also remove lines. C4: Raffel et
al. 2020, section 2.2, as in the code that made it (tensorflow_datasets.text.c4_utils), whose limits
are those of the paper's last version. Gopher: Rae et al. 2021, appendix A.1.1.
"""

import re
from collections.abc import Callable

from pipeline.common.sentences import split_sentences

END_MARKS = (".", "?", "!", '"')
ELLIPSES = ("...", "…")
LINE_WORDS = 5  # at least; a line
WORD_CHARACTERS = 1000  # at most; only the code has this rule, and the one of policies
PAGE_SENTENCES = 3  # at least
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
POLICIES = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies",
    "use cookies",
)  # fmt: skip

PAGE_WORDS = (50, 100_000)
MEAN_WORD_CHARACTERS = (3, 10)
SYMBOLS_PER_WORD = 0.1  # at most, of # and of ellipses
BULLET_LINES = 0.9  # at most, of all lines
ELLIPSIS_LINES = 0.3  # at most
ALPHABETIC_WORDS = 0.8  # at least, of all words
STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
LEAST_STOP_WORDS = 2
BULLETS = ("•", "‣", "▪", "●", "-", "*")

Rules = Callable[[str], tuple[str, str | None]]
"""A page's text to what is kept of it, and the rule that it breaks, if any."""


def c4_rules(text: str) -> tuple[str, str | None]:
    """The lines of prose; sentences are counted by this package's splitter instead of NLTK's."""
    kept, sentences = [], 0
    for line in text.splitlines():
        if any(len(word) > WORD_CHARACTERS for word in line.split()):
            continue
        line = CITATION.sub("", line.strip())
        if not line.endswith(END_MARKS) or line.endswith(ELLIPSES[0]):
            continue
        if len(line.split()) < LINE_WORDS:
            continue
        lower = line.lower()
        if "lorem ipsum" in lower:
            return text, "C4: lorem ipsum"
        if "javascript" in lower:
            continue
        if "{" in line:
            return text, "C4: curly bracket"
        if any(policy in lower for policy in POLICIES):
            continue
        sentences += len(split_sentences(line))
        kept.append(line)
    if sentences < PAGE_SENTENCES:
        return text, "C4: too few sentences"
    return "\n".join(kept).strip(), None


def gopher_rules(text: str) -> tuple[str, str | None]:
    """The text as it is; words are what white space separates."""
    return text, _gopher_fault(text)


def _gopher_fault(text: str) -> str | None:
    words, lines = text.split(), [line.strip() for line in text.split("\n") if line.strip()]
    count = len(words)
    if not PAGE_WORDS[0] <= count <= PAGE_WORDS[1]:
        return "Gopher: number of words"
    if not MEAN_WORD_CHARACTERS[0] <= sum(map(len, words)) / count <= MEAN_WORD_CHARACTERS[1]:
        return "Gopher: mean word length"
    if text.count("#") / count > SYMBOLS_PER_WORD:
        return "Gopher: hash signs"
    if sum(map(text.count, ELLIPSES)) / count > SYMBOLS_PER_WORD:
        return "Gopher: ellipses"
    if sum(line.startswith(BULLETS) for line in lines) / len(lines) > BULLET_LINES:
        return "Gopher: bullet lines"
    if sum(line.endswith(ELLIPSES) for line in lines) / len(lines) > ELLIPSIS_LINES:
        return "Gopher: ellipsis lines"
    if sum(any(map(str.isalpha, word)) for word in words) / count < ALPHABETIC_WORDS:
        return "Gopher: alphabetic words"
    if len(STOP_WORDS.intersection(words)) < LEAST_STOP_WORDS:
        return "Gopher: stop words"
    return None
