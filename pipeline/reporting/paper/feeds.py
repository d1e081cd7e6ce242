"""Which result feeds which of the report's tables and figures, and the command that makes it.

A result is an option of `report.py paper`, or another metric of an evaluation, mostly of one set.
The chain of Slurm jobs shows it for each of its stages, the report for what it lacks. Imports
nothing beyond the standard library, as chain.sh must not.
"""

from collections.abc import Collection, Iterable

Result = tuple[str, str]
"""A kind, and the set where that matters."""

FEEDS: dict[Result, tuple[str, ...]] = {
    ("systems", ""): ("table 1", "table 3", "table 4", "figure 1", "figure 4"),
    ("evaluation", "arxiv"): ("table 2", "table 6"),
    ("evaluation", "pubmed"): ("table 2",),
    ("evaluation", "booksum_chapter"): ("table 2",),
    **{("evaluation", name): ("table 3", "figure 1") for name in ("govreport", "summscreenfd")},
    ("evaluation", "booksum_book"): ("table 5",),
    **{
        (metric, name): ("table 2",)
        for metric in ("bert_score", "blanc")
        for name in ("arxiv", "pubmed", "booksum_chapter")
    },
    ("context", "booksum_book"): ("table 5", "figure 5"),
    ("extrapolation", "arxiv"): ("table 6",),
    ("judge", "pubmed"): ("table 7",),
    **{
        ("data", name): ("table 8",)
        for name in (
            "arxiv", "pubmed", "govreport", "summscreenfd", "booksum_chapter", "booksum_book",
        )
    },
    ("data", "c4"): ("table 9",),
    ("pretrain", ""): ("table 9",),
    ("finetune", ""): ("table 9",),
    ("kernels", ""): ("figure 3", "figure 6", "figure 7"),
}  # fmt: skip
"""By result, the tables and figures by their numbers on the page."""
SCORES = "scores"
"""What an evaluation of a set that the paper does not have feeds: the page's overview."""

SETTINGS = {
    "bert_score": 'BERT_SCORE_ARGUMENTS="--model FOLDER --layer N"',
    "blanc": 'BLANC_ARGUMENTS="--model FOLDER"',
    "judge": "OPENAI_BASE_URL=URL OPENAI_API_KEY=KEY OPENAI_MODEL=NAME "
    'JUDGE_ARGUMENTS="--price_input P --price_output P"',
}
"""Settings of chain.sh without which it does not make a result."""


def feeds(result: Result) -> frozenset[str]:
    """The tables and figures that a result feeds, such as "table 2"."""
    return frozenset(FEEDS.get(result, (SCORES,) if result[0] == "evaluation" else ()))


def in_words(parts: Collection[str]) -> str:
    """Tables and figures in one line: `tables 2, 6; figure 5`."""
    words = []
    for kind in ("table", "figure"):
        numbers = sorted(int(part.split()[1]) for part in parts if part.startswith(kind))
        if numbers:
            plural = "s" if len(numbers) > 1 else ""
            words.append(f"{kind}{plural} {', '.join(map(str, numbers))}")
    return "; ".join([*words, *(part for part in parts if part == SCORES)])


def command(kinds: Iterable[str], sets: Iterable[str] = (), baselines: Iterable[str] = ()) -> str:
    """The chain.sh that makes the results of these kinds, sets and baselines and all they need."""
    names, systems = " ".join(dict.fromkeys(sets)), list(dict.fromkeys(baselines))
    words = [f'SETS="{names}"'] if names else []
    if systems:
        words.append(f'BASELINES="{" ".join(systems)}"')
        words += [f"{name.upper().replace('-', '_')}_MODEL=FOLDER" for name in systems]
    words += [SETTINGS[kind] for kind in dict.fromkeys(kinds) if kind in SETTINGS]
    return " ".join([*words, "bash slurm/chain.sh"])
