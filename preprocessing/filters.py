"""Hygiene: which documents of a crawl are left out, and why (the paper's ethics section)."""

import argparse
import hashlib
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from preprocessing.corpora import TOO_LONG

TOO_SHORT = "too short"
BLOCKED_WORD = "blocked word"
BLOCKED_DOMAIN = "blocked domain"
OTHER_URL = "URL does not match"
OTHER_LANGUAGE = "not accepted"


@dataclass(frozen=True)
class Filters:
    """Tests a document must pass; those that are None are not made."""

    min_characters: int | None = None
    """Shortest text, in characters."""
    max_characters: int | None = None
    """Longest text, in characters."""
    blocked_words: frozenset[str] | None = None
    """Words and phrases, lower case, words joined by one space."""
    blocked_domains: frozenset[str] | None = None
    """Domains; their subdomains count too."""
    url_pattern: re.Pattern[str] | None = None
    """Found somewhere in the URL of what stays; for instance a language's part of a site."""
    accept: Callable[[str, str], bool] | None = None
    """`accept(text, url)`; for instance a language identifier."""

    def fault(self, text: str, url: str) -> str | None:
        """The first test that a document fails, in the order of the fields, or None."""
        if self.min_characters is not None and len(text) < self.min_characters:
            return TOO_SHORT
        if self.max_characters is not None and len(text) > self.max_characters:
            return TOO_LONG
        if self.blocked_words and _holds_any(text, self.blocked_words):
            return BLOCKED_WORD
        if self.blocked_domains and _is_under(url, self.blocked_domains):
            return BLOCKED_DOMAIN
        if self.url_pattern is not None and not self.url_pattern.search(url):
            return OTHER_URL
        if self.accept is not None and not self.accept(text, url):
            return OTHER_LANGUAGE
        return None


def add_filter_options(parser: argparse.ArgumentParser) -> None:
    """The command line's options of `Filters`."""
    group = parser.add_argument_group("filters", "each left-out document is counted by reason")
    group.add_argument("--min_characters", type=int, help="shortest text, in characters")
    group.add_argument("--max_characters", type=int, help="longest text, in characters")
    group.add_argument(
        "--blocked_words",
        metavar="FILE",
        help="words and phrases, one a line; a document that holds one is left out",
    )
    group.add_argument(
        "--blocked_domains",
        metavar="FILE",
        help="domains, one a line; documents of these and their subdomains are left out",
    )
    group.add_argument("--url_pattern", metavar="REGEX", help="keep only URLs in which it is found")
    group.add_argument(
        "--accept",
        metavar="MODULE:FUNCTION",
        help="keep only documents for which your function(text, url) is true",
    )


def filters_from(options: argparse.Namespace) -> tuple[Filters, dict[str, Any]]:
    """The filters of a command line, and what the manifest says of them (files by their digest).

    Raises ValueError on a limit below 1, an empty list, a bad pattern or an unknown function.
    """
    settings: dict[str, Any] = {}
    for name in ("min_characters", "max_characters"):
        limit = getattr(options, name)
        if limit is not None:
            if limit < 1:
                raise ValueError(f"--{name} is {limit}, expected at least 1; leave it out for none")
            settings[name] = limit
    lists: dict[str, frozenset[str] | None] = {}
    for name in ("blocked_words", "blocked_domains"):
        file = getattr(options, name)
        lists[name] = None
        if file is not None:
            content = Path(file).read_bytes()
            lists[name] = _lines(content, f"--{name} {file}")
            settings[name] = f"sha256 {hashlib.sha256(content).hexdigest()}"
    pattern = accept = None
    if options.url_pattern is not None:
        settings["url_pattern"] = options.url_pattern
        try:
            pattern = re.compile(options.url_pattern)
        except re.error as error:
            raise ValueError(f"--url_pattern {options.url_pattern}: {error}") from None
    if options.accept is not None:
        settings["accept"] = options.accept
        accept = _function(options.accept)
    words, domains = lists["blocked_words"], lists["blocked_domains"]
    domains = domains and frozenset(map(_domain, domains))
    return Filters(
        options.min_characters,
        options.max_characters,
        words and frozenset(" ".join(_words(word)) for word in words),
        domains,
        pattern,
        accept,
    ), settings


def _lines(content: bytes, name: str) -> frozenset[str]:
    try:
        lines = frozenset(line.strip().lower() for line in content.decode().splitlines())
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8 text, one entry a line") from None
    if not lines - {""}:
        raise ValueError(f"{name} holds no entry; expected one a line")
    return lines - {""}


def _domain(entry: str) -> str:
    """The domain of an entry that may be a whole URL."""
    return (urlsplit(entry if "//" in entry else f"//{entry}").hostname or entry).strip(".")


def _function(name: str) -> Callable[[str, str], bool]:
    """The user's own test; what goes wrong in it is said with the document it was given."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function or "no function named")
    except Exception as error:  # whatever importing a user's module brings up
        raise ValueError(
            f"--accept {name}: {type(error).__name__}: {error}; expected MODULE:FUNCTION, which "
            "Python can import here (PYTHONPATH)"
        ) from None
    if not callable(found):
        raise ValueError(f"--accept {name} is not a function")

    def accept(text: str, url: str) -> bool:
        try:
            return bool(found(text, url))
        except Exception as error:
            raise ValueError(
                f"--accept {name} failed on the document {url or text[:60]!r}: "
                f"{type(error).__name__}: {error}"
            ) from error

    return accept


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _holds_any(text: str, blocked: frozenset[str]) -> bool:
    words = _words(text)
    if not blocked.isdisjoint(words):
        return True
    joined = f" {' '.join(words)} "
    return any(f" {phrase} " in joined for phrase in blocked if " " in phrase)


def _is_under(url: str, domains: frozenset[str]) -> bool:
    try:
        parts = (urlsplit(url).hostname or "").split(".")
    except ValueError:  # no URL at all
        return False
    return any(".".join(parts[i:]) in domains for i in range(len(parts)))
