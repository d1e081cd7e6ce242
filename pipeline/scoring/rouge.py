"""ROUGE by the reference package (rouge-score), with means and bootstrap intervals."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from pipeline.common.sentences import SPLITTER, split_sentences
from pipeline.scoring.bootstrap import CONFIDENCE, RESAMPLES, Interval, intervals

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

Scores = dict[str, float]

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SCROLLS_TYPES = ("rouge1", "rouge2", "rougeL")
MEAN_COLUMNS = {"rougeL": "mean_rouge_L", "rougeLsum": "mean_rouge"}
"""The results' name of the Mean ROUGE with this third type."""
ROUGE_L_SETS = frozenset({"govreport", "summscreenfd", "booksum_book"})
"""Datasets whose table in the paper has ROUGE-L third; the others have ROUGE-Lsum."""


@lru_cache
def _scorer(use_stemmer: bool) -> "RougeScorer":
    # Its NLTK takes half a second to import, which every training process would spend.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(TYPES), use_stemmer=use_stemmer)


def by_line(text: str) -> str:
    """The text with one sentence per line, as ROUGE-Lsum needs it."""
    return "\n".join(split_sentences(text))


def score_pairs(
    prediction: str, references: Sequence[str], use_stemmer: bool = False
) -> list[Scores]:
    """F1 (0 to 1) of the prediction against each reference, for every type in TYPES.

    `prediction` is any text; it is split here by the splitter that split the references, which
    hold one sentence per line. Raises ValueError when there is no reference.
    """
    if not references:
        raise ValueError("nothing to score against: the list of references is empty")
    sentences = by_line(prediction)
    pairs = (_scorer(use_stemmer).score(reference, sentences) for reference in references)
    return [{name: float(pair[name].fmeasure) for name in TYPES} for pair in pairs]


def mean(pairs: Sequence[Scores]) -> Scores:
    """The mean over the references, for each type."""
    return {name: float(np.mean([pair[name] for pair in pairs])) for name in TYPES}


def best(pairs: Sequence[Scores]) -> Scores:
    """The highest score over the references, for each type, as SCROLLS counts."""
    return {name: max(pair[name] for pair in pairs) for name in TYPES}


def score(prediction: str, references: Sequence[str], use_stemmer: bool = False) -> Scores:
    """The mean of `score_pairs` over the references: with one reference, its F1 (0 to 1)."""
    return mean(score_pairs(prediction, references, use_stemmer))


def mean_rouge(scores: Scores, last: str = "rougeLsum") -> float:
    """Mean ROUGE: the arithmetic mean of ROUGE-1, ROUGE-2 and `last`, in the unit of `scores`.

    The paper uses rougeLsum for validation and for arXiv, PubMed and BookSum-Chapter, and rougeL
    for GovReport, SummScreenFD and BookSum-Book.
    """
    return (scores["rouge1"] + scores["rouge2"] + scores[last]) / 3


def last_type(dataset: str) -> str:
    """The third ROUGE type of a dataset's table in the paper; ROUGE-Lsum for other datasets."""
    return "rougeL" if dataset in ROUGE_L_SETS else "rougeLsum"


def mean_column(dataset: str) -> str:
    """The results' name of a dataset's Mean ROUGE."""
    return MEAN_COLUMNS[last_type(dataset)]


def readable(text: str) -> bool:
    """Whether rouge-score finds a word in the text: it reads only ASCII letters and digits."""
    return re.search(r"[a-z0-9]", text.lower()) is not None


def count_letters(text: str) -> tuple[int, int]:
    """The text's letters of any script, and how many of them rouge-score drops: all but a to z."""
    lower = text.lower()  # first, as the package does: the Kelvin sign becomes k
    return sum(map(str.isalpha, lower)), sum(map(_is_dropped, lower))


def letters_dropped(texts: Iterable[str]) -> float:
    """The share (0 to 1) of the texts' letters that rouge-score drops: what no score covers."""
    counts = [count_letters(text) for text in texts]
    return sum(dropped for _, dropped in counts) / max(1, sum(letters for letters, _ in counts))


def aggregate(scores: Sequence[Scores], seed: int = 0) -> dict[str, Interval]:
    """Corpus means in percent, with intervals.

    Of every type, `mean_rouge`, `mean_rouge_L` and `geometric_mean`: the geometric mean of the
    means of ROUGE-1, -2 and -L, by which SCROLLS ranks (over the `best` scores of each example).
    """
    return intervals(
        [_with_means(example) for example in scores],
        scale=100,
        seed=seed,
        derived={"geometric_mean": _geometric_mean},
    )


def compare(ours: Sequence[Scores], theirs: Sequence[Scores], seed: int = 0) -> dict[str, Interval]:
    """The mean difference, ours minus theirs, with paired bootstrap intervals."""
    if len(ours) != len(theirs):
        raise ValueError(f"cannot pair {len(ours)} scores with {len(theirs)}: same examples needed")
    pairs = zip(map(_with_means, ours), map(_with_means, theirs), strict=True)
    return intervals(
        [{name: a[name] - b[name] for name in a} for a, b in pairs], scale=100, seed=seed
    )


def recipe(use_stemmer: bool = False) -> dict[str, str | bool | int | float]:
    """The settings needed to reproduce the numbers."""
    return {
        "package": f"rouge-score {version('rouge-score')}",
        "measure": "F1",
        "references": "whole",
        "stemmer": use_stemmer,
        "sentences": SPLITTER,
        "interval": f"bootstrap over examples, {RESAMPLES} resamples, {CONFIDENCE:.0%}",
    }


def _is_dropped(character: str) -> bool:
    return character.isalpha() and not character.isascii()


def _with_means(scores: Scores) -> Scores:
    return {
        **{name: scores[name] for name in TYPES},
        "mean_rouge": mean_rouge(scores),
        "mean_rouge_L": mean_rouge(scores, last="rougeL"),
    }


def _geometric_mean(means: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.cbrt(np.prod([means[name] for name in SCROLLS_TYPES], axis=0))
