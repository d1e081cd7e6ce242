"""The paper's figures, as data."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from pipeline.evaluation.rouge import Scores, mean_rouge

TABLES = Path(__file__).with_name("paper_tables.yaml")
MEAN = {"rougeL": "mean_rouge_L", "rougeLsum": "mean_rouge"}  # the mean that ends in this type


@dataclass(frozen=True)
class PaperSet:
    """What the paper says of a summarisation set; scores are LOCOST's, F1 in percent."""

    title: str
    documents: int
    lengths: tuple[int | None, int]
    """Longest source and target in tokens; None: whole texts."""
    scores: Scores
    note: str = ""

    @property
    def last(self) -> str:
        """The third ROUGE type of the set's table: rougeL or rougeLsum."""
        return next(name for name in self.scores if name.startswith("rougeL"))

    @property
    def mean_rouge(self) -> float:
        """The arithmetic mean of the three scores."""
        return mean_rouge(self.scores, self.last)


@dataclass(frozen=True)
class PretrainingCost:
    """What the paper's pre-training took."""

    hours: float
    gpus: int
    watts_a_gpu: float
    grams_co2_a_kwh: float

    @property
    def gpu_hours(self) -> float:
        """Hours of all GPUs together."""
        return self.hours * self.gpus

    @property
    def kwh(self) -> float:
        """The energy of all GPUs."""
        return self.gpu_hours * self.watts_a_gpu / 1e3

    @property
    def co2_kg(self) -> float:
        """Emissions in kg of CO2."""
        return self.kwh * self.grams_co2_a_kwh / 1e3


@dataclass(frozen=True)
class Paper:
    """The paper's sets by the names that recipes give them, in its order, and its cost."""

    sets: dict[str, PaperSet]
    pretraining: PretrainingCost


@lru_cache
def paper() -> Paper:
    """The figures in paper_tables.yaml."""
    tables = yaml.safe_load(TABLES.read_text(encoding="utf-8"))
    sets = {name: PaperSet(**values) for name, values in tables["sets"].items()}
    return Paper(sets, PretrainingCost(**tables["pretraining"]))


def last_type(name: str) -> str:
    """The third ROUGE type of a set's table: the paper's choice, ROUGE-Lsum for other sets."""
    return paper().sets[name].last if name in paper().sets else "rougeLsum"


def mean_column(name: str) -> str:
    """What the results call the Mean ROUGE of a set's table."""
    return MEAN[last_type(name)]
