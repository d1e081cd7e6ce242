"""Lists of blocked words and domains, and what they match.

An entry is matched as it is written, or its list is refused with the entry's line.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

LABEL = r"[^\W]([\w-]*[^\W])?"
DOMAIN = re.compile(rf"\.{LABEL}|{LABEL}(\.{LABEL})+")
PLAIN = re.compile(r"\w+( \w+)*")


class BlockedWords:
    """Words and phrases, whole and in any case; marks and spaces may separate a phrase's words.

    An entry with other characters, such as `a$$` or an emoji, is found as it stands; a letter or
    digit at its edge is where a word begins or ends.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        folded = {" ".join(_folded(entry).split()) for entry in entries}
        plain = {entry for entry in folded if PLAIN.fullmatch(entry)}
        self._words = frozenset(entry for entry in plain if " " not in entry)
        self._phrases = sorted(plain - self._words)
        self._others = {entry: _pattern(entry) for entry in sorted(folded - plain)}

    def match(self, text: str) -> bool:
        """Whether the text contains an entry."""
        text = _folded(text)
        words = re.findall(r"\w+", text)
        if not self._words.isdisjoint(words):
            return True
        if self._phrases:
            joined = f" {' '.join(words)} "
            if any(f" {phrase} " in joined for phrase in self._phrases):
                return True
        if not self._others:
            return False
        spaced = " ".join(text.split())
        return any(
            entry in spaced and pattern.search(spaced) for entry, pattern in self._others.items()
        )


class BlockedDomains:
    """Domains with their subdomains; `.org` is a whole top-level domain."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._domains = frozenset(_ascii(entry.strip(".").lower()) for entry in entries)

    def match(self, url: str) -> bool | None:
        """Whether the URL is of one of the domains; None where it is no URL."""
        host = host_of(url)
        if host is None:
            return None
        parts = _ascii(host).split(".")
        return any(".".join(parts[i:]) in self._domains for i in range(len(parts)))


def host_of(url: str) -> str | None:
    """A URL's host in lower case, also where it has no scheme; None where there is none."""
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname
    except ValueError:
        return None
    return host.strip(".") or None if host and " " not in host else None


def read_words(file: str) -> tuple[BlockedWords, str]:
    """The words of a file, one entry a line, and its digest. Raises ValueError without entries."""
    lines, digest = _lines(file, "--blocked_words")
    return BlockedWords(entry for _, entry in lines), digest


def read_domains(file: str) -> tuple[BlockedDomains, str]:
    """The domains of a file, one a line, lines with # aside, and its digest.

    An entry may be a URL without a path. Raises ValueError without entries and where one is no
    domain.
    """
    lines, digest = _lines(file, "--blocked_domains")
    domains = [
        (number, _without_scheme(entry)) for number, entry in lines if not entry.startswith("#")
    ]
    wrong = [number for number, domain in domains if not DOMAIN.fullmatch(domain)]
    if wrong:
        entry = dict(lines)[wrong[0]]
        others = f" (of {len(wrong):,} such lines)" if len(wrong) > 1 else ""
        raise ValueError(
            f"--blocked_domains {file}, line {wrong[0]}{others}: {entry!r} is not a domain; write "
            f"{_suggestion(entry)}"
        )
    if not domains:
        raise ValueError(f"--blocked_domains {file} has no entries, expected one per line")
    return BlockedDomains(domain for _, domain in domains), digest


def _lines(file: str, option: str) -> tuple[list[tuple[int, str]], str]:
    """(number, entry) of the lines that are not blank, and the file's digest."""
    content = Path(file).read_bytes()
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise ValueError(
            f"{option} {file} is not UTF-8 text, expected one entry per line"
        ) from None
    entries = [(number, line.strip(" \t\r\f\v\ufeff")) for number, line in enumerate(lines, 1)]
    found = [(number, entry) for number, entry in entries if entry]
    if not found:
        raise ValueError(f"{option} {file} has no entries, expected one per line")
    return found, f"sha256 {hashlib.sha256(content).hexdigest()}"


def _without_scheme(entry: str) -> str:
    return entry.partition("//")[2].removesuffix("/") if "//" in entry else entry.removesuffix("/")


def _suggestion(entry: str) -> str:
    """What to write instead of an entry of another kind of list."""
    words = [word.strip("*.|^@") for word in re.split(r"[\s/:^$]+", entry)]
    found = [word for word in words if DOMAIN.fullmatch(word) and not re.fullmatch(r"[\d.]+", word)]
    if found:
        return f"{found[0]} (one domain per line; its subdomains are included)"
    return "one domain per line, such as example.org, or .org for all of them"


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text.lower())


def _ascii(host: str) -> str:
    """The form in which URLs have domains with other letters: xn--..."""
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def _pattern(entry: str) -> re.Pattern[str]:
    begin = r"(?<!\w)" if re.match(r"\w", entry[0]) else ""
    end = r"(?!\w)" if re.match(r"\w", entry[-1]) else ""
    return re.compile(begin + re.escape(entry) + end)
