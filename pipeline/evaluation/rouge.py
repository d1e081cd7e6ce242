"""ROUGE by the reference package (rouge-score), its means and its bootstrap intervals."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

from pipeline.evaluation.bootstrap import CONFIDENCE, RESAMPLES, Interval, intervals
from preprocessing.sentences import SPLITTER, split_sentences

Scores = dict[str, float]

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SCROLLS_TYPES = ("rouge1", "rouge2", "rougeL")


@lru_cache
def _scorer(use_stemmer: bool) -> RougeScorer:
    return RougeScorer(list(TYPES), use_stemmer=use_stemmer)


def by_line(text: str) -> str:
    """The text with one sentence a line, as ROUGE-Lsum wants it."""
    return "\n".join(split_sentences(text))


def score_pairs(
    prediction: str, references: Sequence[str], use_stemmer: bool = False
) -> list[Scores]:
    """F1 (0 to 1) of the prediction against each reference, for every type in TYPES.

    `prediction` is any text; it is split here by the splitter that split the references, which
    hold one sentence a line. Raises ValueError when there is no reference.
    """
    if not references:
        raise ValueError("nothing to score against: the list of references is empty")
    sentences = by_line(prediction)
    pairs = (_scorer(use_stemmer).score(reference, sentences) for reference in references)
    return [{name: float(pair[name].fmeasure) for name in TYPES} for pair in pairs]


def mean(pairs: Sequence[Scores]) -> Scores:
    """For each type the mean over the references."""
    return {name: float(np.mean([pair[name] for pair in pairs])) for name in TYPES}


def best(pairs: Sequence[Scores]) -> Scores:
    """For each type the highest score over the references, as SCROLLS counts."""
    return {name: max(pair[name] for pair in pairs) for name in TYPES}


def score(prediction: str, references: Sequence[str], use_stemmer: bool = False) -> Scores:
    """The mean of `score_pairs` over the references: with one reference, its F1 (0 to 1)."""
    return mean(score_pairs(prediction, references, use_stemmer))


def mean_rouge(scores: Scores, last: str = "rougeLsum") -> float:
    """Mean ROUGE: the arithmetic mean of ROUGE-1, ROUGE-2 and `last`, in the unit of `scores`.

    The paper takes rougeLsum for validation and for arXiv, PubMed and BookSum-Chapter, and rougeL
    for GovReport, SummScreenFD and BookSum-Book.
    """
    return (scores["rouge1"] + scores["rouge2"] + scores[last]) / 3


def readable(text: str) -> bool:
    """Whether rouge-score finds a word in the text: it reads ASCII letters and digits only."""
    return re.search(r"[a-z0-9]", text.lower()) is not None


def aggregate(scores: Sequence[Scores], seed: int = 0) -> dict[str, Interval]:
    """Corpus means in percent, with intervals.

    Of every type; `mean_rouge` and `mean_rouge_L`; and `geometric_mean`, that of the means of
    ROUGE-1, -2 and -L, by which SCROLLS ranks (over the `best` scores of each example).
    """
    return intervals(
        [_with_means(example) for example in scores],
        scale=100,
        seed=seed,
        derived={"geometric_mean": _geometric_mean},
    )


def compare(ours: Sequence[Scores], theirs: Sequence[Scores], seed: int = 0) -> dict[str, Interval]:
    """The mean of ours minus theirs, example by example, with paired bootstrap intervals."""
    if len(ours) != len(theirs):
        raise ValueError(f"cannot pair {len(ours)} scores with {len(theirs)}: same examples needed")
    pairs = zip(map(_with_means, ours), map(_with_means, theirs), strict=True)
    return intervals(
        [{name: a[name] - b[name] for name in a} for a, b in pairs], scale=100, seed=seed
    )


def recipe(use_stemmer: bool = False) -> dict[str, str | bool | int | float]:
    """What a reader needs to compute the same numbers."""
    return {
        "package": f"rouge-score {version('rouge-score')}",
        "measure": "F1",
        "references": "whole",
        "stemmer": use_stemmer,
        "sentences": SPLITTER,
        "interval": f"bootstrap over examples, {RESAMPLES} resamples, {CONFIDENCE:.0%}",
    }


def _with_means(scores: Scores) -> Scores:
    return {
        **{name: scores[name] for name in TYPES},
        "mean_rouge": mean_rouge(scores),
        "mean_rouge_L": mean_rouge(scores, last="rougeL"),
    }


def _geometric_mean(means: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.cbrt(np.prod([means[name] for name in SCROLLS_TYPES], axis=0))
