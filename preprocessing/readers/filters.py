"""Filters for documents of a web crawl (the paper's ethics section)."""

import argparse
import re
from dataclasses import dataclass
from typing import Any

from pipeline.common.command_line import count_from
from preprocessing.readers.accepting import Accept, load_function
from preprocessing.readers.blocklists import BlockedDomains, BlockedWords, read_domains, read_words
from preprocessing.readers.entries import NO_URL, TOO_LONG, Entry

TOO_SHORT = "too short"
BLOCKED_WORD = "blocked word"
BLOCKED_DOMAIN = "blocked domain"
OTHER_URL = "URL does not match"
OTHER_LANGUAGE = "not accepted"


@dataclass(frozen=True)
class Filters:
    """Tests that a document must pass; None: no such test."""

    min_characters: int | None = None
    """Minimum length of the text, in characters."""
    max_characters: int | None = None
    """Maximum length of the text, in characters."""
    blocked_words: BlockedWords | None = None
    """Words and phrases."""
    blocked_domains: BlockedDomains | None = None
    """Domains, with their subdomains; a document without a URL is left out too."""
    url_pattern: re.Pattern[str] | None = None
    """Must match somewhere in the URL; for instance a site's section in one language."""
    accept: Accept | None = None
    """`accept(text, url)`; for instance a language identifier."""

    def fault(self, text: str, url: str) -> str | None:
        """The reason of the first test that fails, in the order of the fields, or None."""
        if self.min_characters is not None and len(text) < self.min_characters:
            return TOO_SHORT
        if self.max_characters is not None and len(text) > self.max_characters:
            return TOO_LONG
        if self.blocked_words is not None and self.blocked_words.match(text):
            return BLOCKED_WORD
        if self.blocked_domains is not None and (blocked := self.blocked_domains.match(url)) in (
            True,
            None,
        ):
            return BLOCKED_DOMAIN if blocked else NO_URL
        if self.url_pattern is not None and not self.url_pattern.search(url):
            return OTHER_URL if url else NO_URL
        if self.accept is not None and not self.accept(text, url):
            return OTHER_LANGUAGE
        return None

    def screen(self, entry: Entry) -> Entry:
        """The entry {text, url}, or the same with the reason for its exclusion as the record."""
        if isinstance(entry.record, str):
            return entry
        fault = self.fault(entry.record["text"], entry.record["url"])
        return entry._replace(record=fault) if fault else entry


def add_filter_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `Filters`."""
    group = parser.add_argument_group("filters", "excluded documents are counted by reason")
    group.add_argument(
        "--min_characters", type=count_from(1), help="minimum length of a text, in characters"
    )
    group.add_argument(
        "--max_characters", type=count_from(1), help="maximum length of a text, in characters"
    )
    group.add_argument(
        "--blocked_words",
        metavar="FILE",
        help="words and phrases, one per line; exclude documents that contain one as a whole, in "
        "any case; other characters, as in a$$, are matched as they stand",
    )
    group.add_argument(
        "--blocked_domains",
        metavar="FILE",
        help="domains, one per line (# begins a comment line); exclude documents from these and "
        "their subdomains, and documents without a URL",
    )
    group.add_argument(
        "--url_pattern", metavar="REGEX", help="keep only documents whose URL matches somewhere"
    )
    group.add_argument(
        "--accept",
        metavar="MODULE:FUNCTION",
        help="keep only documents for which your function(text, url) returns true",
    )


def filters_from(options: argparse.Namespace) -> tuple[Filters, dict[str, Any]]:
    """The filters of a command line, and their settings for the manifest (files by digest).

    Raises ValueError on a list that is empty or has an entry that cannot be matched, an invalid
    pattern or an unknown function.
    """
    settings: dict[str, Any] = {}
    for name in ("min_characters", "max_characters"):
        if (limit := getattr(options, name)) is not None:
            settings[name] = limit
    words = domains = pattern = accept = None
    if options.blocked_words is not None:
        words, settings["blocked_words"] = read_words(options.blocked_words)
    if options.blocked_domains is not None:
        domains, settings["blocked_domains"] = read_domains(options.blocked_domains)
    if options.url_pattern is not None:
        settings["url_pattern"] = options.url_pattern
        try:
            pattern = re.compile(options.url_pattern)
        except re.error as error:
            raise ValueError(f"--url_pattern {options.url_pattern}: {error}; correct it") from None
    if options.accept is not None:
        accept, settings["accept"] = load_function(options.accept)
    limits = (options.min_characters, options.max_characters)
    return Filters(*limits, words, domains, pattern, accept), settings
