"""The four ratings in a judge's reply, whatever the markup around them."""

import re

DIMENSIONS = ("relevance", "consistency", "fluency", "coherence")

# No pattern has two neighbouring parts that match the same characters: their time is linear.
_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_TABLE_HEAD = re.compile(r"^[ \t]*\|.*\n(?=[ \t|:]*-[-:| \t]*$)", re.MULTILINE)
_RULE = re.compile(r"^(?:[ \t]*```\w*[ \t]*|[-:=| \t]+)$", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*(?:#+|>|[-+•]|\(?\d[.)])[ \t]+(?=\D)", re.MULTILINE)
_QUOTES = re.compile(r"[*_`'\"“”{}\[\]|]")
_OUT_OF = re.compile(r"(?<=[1-5])[ \t]*(?:/|out of)[ \t]*5(?![\d.])", re.IGNORECASE | re.ASCII)

_LABEL = rf"({'|'.join(DIMENSIONS)})(?:[ \t]*[:=：]|[ \t]+[-–—](?=[ \t]))?"
_RATING = rf"{_LABEL}[ \t]*([1-5])"
_REPLY = re.compile(
    rf"\s*{_RATING}" + rf"[\s,;]+{_RATING}" * 3 + r"[.,;]?\s*", re.IGNORECASE | re.ASCII
)


def parse_reply(text: str) -> dict[str, int] | None:
    """The four ratings, if the reply holds each once with its label, and nothing else but markup.

    Accepted are emphasis, lists, headings, tables, code fences, JSON, ratings as 4/5 or "4 out of
    5", and a <think> block before them. Prose is not: its numbers may be of something else.
    """
    match = _REPLY.fullmatch(_without_markup(text))
    if not match:
        return None
    words = [word.lower() for word in match.groups()]
    ratings = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    return {name: ratings[name] for name in DIMENSIONS} if len(ratings) == 4 else None


def _without_markup(text: str) -> str:
    text = _THOUGHTS.sub("", text, count=1)
    for markup in (_TABLE_HEAD, _RULE, _BULLET, _QUOTES, _OUT_OF):
        text = markup.sub("", text)
    return text
