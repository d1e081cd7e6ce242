"""Filters for documents of a web crawl (the paper's ethics section)."""

import argparse
import re
from dataclasses import dataclass
from typing import Any

from pipeline.common.command_line import count_from
from preprocessing.readers.accepting import Accept, load_function
from preprocessing.readers.blocklists import BlockedDomains, BlockedWords, read_domains, read_words
from preprocessing.readers.entries import NO_URL, TOO_LONG, Entry
from preprocessing.readers.evaluation_texts import (
    LEAKED,
    EvaluationTexts,
    add_decontamination_options,
)
from preprocessing.readers.languages import THRESHOLD, Languages
from preprocessing.readers.quality import Rules, c4_rules, gopher_rules
from preprocessing.readers.repetition import gopher_repetition_rules

TOO_SHORT = "too short"
BLOCKED_WORD = "blocked word"
BLOCKED_DOMAIN = "blocked domain"
OTHER_URL = "URL does not match"
NOT_ACCEPTED = "not accepted"

QUALITY: dict[str, Rules] = {
    "c4": c4_rules,
    "gopher": gopher_rules,
    "gopher_repetition": gopher_repetition_rules,
}


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
    """`accept(text, url)`, your own test."""
    languages: Languages | None = None
    """The languages to keep."""
    quality: tuple[str, ...] = ()
    """Published rules, by their names in QUALITY; some remove lines of a text."""
    evaluation_texts: EvaluationTexts | None = None
    """Texts that must not be part of another."""

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
            return NOT_ACCEPTED
        if self.languages is not None and (fault := self.languages.fault(text)):
            return fault
        return None

    def keep(self, text: str, url: str) -> tuple[str, str | None]:
        """What is left of a text by the rules of quality, and the reason for its exclusion.

        The rules come after the tests of `fault`, evaluation texts last.
        """
        if fault := self.fault(text, url):
            return text, fault
        for name in self.quality:
            text, fault = QUALITY[name](text)
            if fault:
                return text, fault
        if self.evaluation_texts is not None and self.evaluation_texts.has_part_of(text):
            return text, LEAKED
        return text, None

    def screen(self, entry: Entry) -> Entry:
        """The entry {text, url}, or the same with the reason for its exclusion as the record.

        With `languages`, a record that stays also has the language's code.
        """
        if isinstance(entry.record, str):
            return entry
        before = entry.record["text"]
        text, fault = self.keep(before, entry.record["url"])
        if fault:
            return entry._replace(record=fault)
        language = {"language": self.languages.language(before)} if self.languages else {}
        return entry._replace(record={**entry.record, "text": text, **language})


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
    group.add_argument(
        "--language",
        nargs="+",
        metavar="CODE",
        help="keep only documents in these languages, by fastText's lid.176",
    )
    group.add_argument(
        "--language_threshold",
        type=float,
        default=THRESHOLD,
        help="with --language: exclude documents of whose language the identifier is less certain",
    )
    group.add_argument(
        "--quality", nargs="+", choices=QUALITY, help="published rules for web pages, in this order"
    )
    add_decontamination_options(group, share=0.0)


def filters_from(
    options: argparse.Namespace, evaluation_texts: EvaluationTexts | None = None
) -> tuple[Filters, dict[str, Any]]:
    """The filters of a command line, and their settings for the manifest (files by digest).

    Raises ValueError on a list that is empty or has an entry that cannot be matched, an invalid
    pattern or an unknown function.
    """
    settings: dict[str, Any] = {}
    low, high = options.min_characters, options.max_characters
    if low is not None and high is not None and low > high:
        raise ValueError(
            f"--min_characters {low} is more than --max_characters {high}: no text has both"
        )
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
    languages = None
    if options.language is not None:
        languages = Languages(tuple(options.language), options.language_threshold)
        settings |= languages.describe()
    elif options.language_threshold != THRESHOLD:
        raise ValueError(
            "--language_threshold is of use with --language only; give both, or omit it"
        )
    quality = tuple(dict.fromkeys(options.quality or ()))
    if quality:
        settings["quality"] = list(quality)
    if evaluation_texts is not None:
        settings |= evaluation_texts.describe()
    return (
        Filters(
            options.min_characters,
            options.max_characters,
            words,
            domains,
            pattern,
            accept,
            languages,
            quality,
            evaluation_texts,
        ),
        settings,
    )
