"""Real documents of C4, and what the filters are to find planted among them."""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from declaration import ARTICLES

DATA = Path(__file__).resolve().parents[2] / "../shared/data"
EDIT_RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
LEAKED_WORDS = (13, 25, 50, 200)
EACH = 60  # planted documents of a kind


class Planted(NamedTuple):
    """A planted text, its kind, and the number of its original where it is a copy."""

    kind: str
    text: str
    original: int = -1


def c4_texts() -> list[str]:
    """The texts of C4's samples."""
    paths = sorted((DATA / "c4").glob("c4-train*.json.gz"))
    return [json.loads(line)["text"] for path in paths for line in gzip.open(path)]


def evaluation_texts() -> list[str]:
    """The documents of GovReport's samples."""
    lines = (DATA / "gov_report/gov_report_pairs.jsonl").read_text().splitlines()
    return [json.loads(line)["input"] for line in lines]


def edited(text: str, rate: float, words: Sequence[str], rng: random.Random) -> str:
    """A copy: of `rate` of the words a third each are replaced, left out, followed by another."""

    def edit(word: str) -> str:
        if rng.random() >= rate:
            return word
        return rng.choice((rng.choice(words), "", f"{word} {rng.choice(words)}"))

    return "\n".join(" ".join(map(edit, line.split())) for line in text.split("\n"))


def near_copies(texts: Sequence[str]) -> list[Planted]:
    """Copies of documents of at least 50 words, by the rate at which words were edited."""
    rng = random.Random(0)
    words = [word for text in texts for word in text.split()]
    long = [number for number, text in enumerate(texts) if len(text.split()) >= 50]
    return [
        Planted(f"copy, {rate:.0%} of words edited", edited(texts[n], rate, words, rng), n)
        for rate in EDIT_RATES
        for n in rng.sample(long, EACH)
    ]


def leaks(texts: Sequence[str], evaluation: Sequence[str]) -> list[Planted]:
    """Documents with a passage of an evaluation text between two of their sentences."""
    rng = random.Random(1)
    found = []
    for count in LEAKED_WORDS:
        for text in rng.sample(texts, EACH):
            passage = rng.choice(evaluation).split()
            start = rng.randrange(len(passage) - count)
            before, _, after = text.partition(". ")
            leak = " ".join(passage[start : start + count])
            found.append(Planted(f"{count} words of a test", f"{before}. {leak} {after}"))
    return found


def other_languages() -> list[Planted]:
    """Texts in other languages, cut to several lengths."""
    return [
        Planted(f"{characters} characters, not English", text[:characters])
        for characters in (40, 100, 250)
        for text in ARTICLES.values()
    ]


def boilerplate(texts: Sequence[str]) -> list[Planted]:
    """What is not prose: menus, notices, code, lists of products, pages that repeat themselves."""
    rng = random.Random(2)
    words = [word for text in texts for word in text.split()]

    def line(low: int, high: int) -> str:
        return " ".join(rng.choices(words, k=rng.randint(low, high))).rstrip('.!?"')

    makers: dict[str, Callable[[], str]] = {
        "menu": lambda: "\n".join(line(1, 4) for _ in range(40)),
        "notices": lambda: "Please enable JavaScript to view this page.\n"
        "This site uses cookies to give you the best experience.\n"
        "Read our privacy policy and the terms of use of this site.\n" + line(20, 40),
        "code": lambda: "\n".join(f"function {line(1, 1)}() {{ return {line(1, 2)}; }}. It is a "
                                  "function of the page." for _ in range(20)),
        "placeholder": lambda: f"{line(9, 20)}.\nLorem ipsum dolor sit amet, consectetur elit.\n"
        f"{line(9, 20)}.\n{line(9, 20)}.",
        "bullets": lambda: "\n".join(f"• {line(4, 12)}" for _ in range(25)),
        "hash tags": lambda: " ".join(f"#{word} {word}" for word in rng.sample(words, 80)),
        "excerpts": lambda: "\n".join(f"{line(12, 25)}..." for _ in range(12)),
        "repeated lines": lambda: "\n".join([line(6, 12), line(6, 12)] * 10),
        "repeated phrase": lambda: " ".join([line(7, 9)] * 15) + " " + line(60, 90),
        "numbers": lambda: " ".join(str(rng.randrange(10**5)) for _ in range(100)) + line(9, 20),
    }  # fmt: skip
    return [Planted(kind, make()) for kind, make in makers.items() for _ in range(EACH // 6)]
