"""A rule-based sentence splitter for English; docs/sentences.md compares it with other splitters.

A full stop, exclamation or question mark before white space may end a sentence; the text on either
side of it decides.
"""

import re

SPLITTER = "newline, then rules 2"  # increase the number with every change of a result

# A possible end of a sentence: a terminator (the last of several), closing marks, white space.
_CANDIDATE = re.compile(r"[.!?…]([\"'”’»)\]]*(?: [”»])?)\s+")
# The next word, after a few opening marks, dashes or bullets.
_NEXT_WORD = re.compile(r"[^\w,)\]}.!?…]{0,5}(\w*)")
_LABEL = re.compile(r"[•*(\[ ]*(?:\d{1,3}|[A-Za-z]|[ivxIVX]+)")  # 1. or a. or iv.
_DOTTED = re.compile(  # U.S. or a.m. or Ph.D.
    r"(?:.*[-/])?(?:[A-Za-z]{1,2}(?:\.[A-Za-z]{1,4})+|(?:Psy|Pharm|Eng|Mus)\.D)"
)
_SHORT_FORM = re.compile(r"[b-df-hj-np-tv-z]{1,2}|[IVXLC]{2,}")  # 5th st. or Louis XVI.
_OPENING = "\"'“‘«([{<*_-–—"
_LONGEST_WORD = 20  # characters checked before a full stop, so that time is linear

# Abbreviations, in lower case without their last full stop, by the rule that applies to them.
_TITLE = "does not end a sentence if capitalised"  # Rep. Lee, but: one more rep. Then rest
_INSIDE = "does not end a sentence"
_NUMBER = "ends a sentence unless a number or lower case follows"
_EITHER = "ends a sentence before a word that often starts one"  # also initials, U.S., a.m.
_ABBREVIATIONS = {
    word: kind
    for kind, words in {
        _TITLE: "mr mrs ms mx messrs mme mlle dr drs prof profs rev hon fr br gen col maj capt cpt "
        "cmdr cdr brig lt sgt cpl pvt gov sen sens rep reps pres supt insp st ste mt ft",
        _INSIDE: "e.g i.e eg ie cf vs viz ca approx eds resp incl dept depts univ assn assoc intl "
        "natl ser pat",
        _NUMBER: "no nos n° nr fig figs eq eqs eqn eqns ref refs sec secs sect ch chap chaps p pp "
        "vol vols art arts ex tab thm lem cor prop def op pt para bk ln "
        "rs etc jan feb mar apr jun jul aug sep sept oct nov dec",
        _EITHER: "al inc ltd co cos corp llc plc bros jr sr esq mfg mfr ave blvd rd hwy "
        "min max hr hrs lb lbs oz ext tel proc phys lett acad sci soc inst "
        "ala ariz calif colo conn fla ill kan mass mich minn mont nev okla ore penn tenn tex wis",
    }.items()
    for word in words.split()
}
# Titles in this form only: SEC, ADM and DET are names too, sec. is a section or a second.
_CAPITALISED_TITLES = frozenset("Sec Adm Atty Asst Amb Det".split())
_STARTERS = frozenset(
    "The This That These Those There Here A An It Its He She They We I You His Her Their Our My "
    "Your In On At From For By With Of As After Before During Since While When Where Why How What "
    "Who Which If Although Though Because However But And Or So Yet Then Thus Therefore Also "
    "Some Many Most All Each Every Both One Not No Now Once Until Unlike Despite According To "
    "Is Are Was Were Do Does Did Have Has Had Can Could Will Would Should Please See Such Another "
    "Other Finally First Moreover Furthermore Meanwhile Instead Nobody Nothing".split()
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order, stripped and non-empty.

    A newline always ends a sentence (C4 has one paragraph per line). Time is linear in the text.
    """
    sentences = []
    for line in text.split("\n"):
        line, start = line.strip(), 0
        for candidate in _CANDIDATE.finditer(line):
            if _ends(line, start, candidate):
                sentences.append(line[start : candidate.end(1)])
                start = candidate.end()
        if line:
            sentences.append(line[start:])
    return sentences


def _ends(line: str, start: int, candidate: re.Match[str]) -> bool:
    """Whether the sentence that begins at `start` ends at a candidate inside the line."""
    stop, end = candidate.span()
    closers = candidate[1]
    following = line[end]
    if following in ":;":
        return False
    if not following.isalnum():
        word, after = _next_word(line, end)
        if not word and after in ",)]}.!?…":
            return False
        following = word[:1]
    lower = following.islower()
    if lower and closers:
        return False  # "Why?" she asked.
    if line[stop] in "!?":
        return True
    if line[stop] == "…" or line[stop - 1 : stop] == "." or line[stop - 2 : stop] == ". ":
        return not lower and closers[:1] != "]"  # [...] marks omitted words
    if stop - start < 6 and _LABEL.fullmatch(line, start, stop):
        return False
    if closers:
        return True
    words = line[max(start, stop - _LONGEST_WORD) : stop].split()
    last = words[-1].lstrip(_OPENING) if words else ""
    kind = _ABBREVIATIONS.get(last.lower())
    if last == "P":  # an initial; p. is a page
        kind = None
    elif last in _CAPITALISED_TITLES:
        kind = _TITLE
    if kind is None and (
        (len(last) == 1 and last.isalpha()) or ("." in last and _DOTTED.fullmatch(last))
    ):
        kind = _EITHER
    if kind is None or (kind is _TITLE and not last[0].isupper()):
        return not lower or _SHORT_FORM.fullmatch(last) is None
    if kind is _NUMBER:
        return not lower and not following.isdigit()
    if kind is _EITHER:
        word, after = _next_word(line, end)
        return word in _STARTERS and after != "."
    return False


def _next_word(line: str, position: int) -> tuple[str, str]:
    """The next word after a position (empty if there is none), and the character after it."""
    match = _NEXT_WORD.match(line, position)
    assert match  # it also matches the empty string
    return match[1], line[match.end() : match.end() + 1]
