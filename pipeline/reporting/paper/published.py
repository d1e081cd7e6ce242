"""The paper's figures, as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.scoring.rouge import Scores, mean_rouge

TABLES = Path(__file__).with_name("tables.yaml")
LOCOST, LONGT5 = "locost", "longt5-tglobal"
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class PaperRow:
    """A system's row in a set's table, F1 in percent; `third` is the table's third ROUGE type."""

    rouge1: float
    rouge2: float
    third: float
    bert_score: float | None = None
    blanc: float | None = None
    percent: float | None = None
    """Mean ROUGE in percent of LongT5's, as printed."""

    @property
    def mean_rouge(self) -> float:
        """The arithmetic mean of the three."""
        return (self.rouge1 + self.rouge2 + self.third) / 3

    @property
    def geometric_mean(self) -> float:
        """SCROLLS's ranking figure, where the third type is ROUGE-L."""
        return (self.rouge1 * self.rouge2 * self.third) ** (1 / 3)


@dataclass(frozen=True)
class PaperSet:
    """A summarisation set's figures in the paper."""

    title: str
    last: str
    """The third ROUGE type of the set's table: rougeL or rougeLsum."""
    lengths: tuple[int | None, int]
    """Maximum source and target length in tokens; None: whole texts."""
    counts: tuple[int, int, int]
    """Pairs in the training, validation and test splits."""
    input: tuple[float, int, int, int]
    """Mean, median, maximum and 90th percentile of the documents' lengths in tokens."""
    rows: dict[str, PaperRow]
    """By system."""
    note: str = ""

    @property
    def documents(self) -> int:
        """Pairs of the test split."""
        return self.counts[2]

    @property
    def scores(self) -> Scores:
        """LOCOST's, by type."""
        row = self.rows[LOCOST]
        return {"rouge1": row.rouge1, "rouge2": row.rouge2, self.last: row.third}

    @property
    def mean_rouge(self) -> float:
        """LOCOST's: the arithmetic mean of its three scores."""
        return mean_rouge(self.scores, self.last)

    def percent(self, system: str) -> float:
        """A system's Mean ROUGE in percent of LongT5's, recomputed from the rows."""
        return 100 * self.rows[system].mean_rouge / self.rows[LONGT5].mean_rouge


@dataclass(frozen=True)
class PretrainingCost:
    """Time and energy of the paper's pre-training."""

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
    """The paper's tables; the sets by the names that recipes give them, in its order.

    The comments in tables.yaml say what the columns of the other tables are.
    """

    systems: dict[str, str]
    sets: dict[str, PaperSet]
    scrolls: dict[str, Sequence[float | None]]
    throughput: dict[str, Sequence[float | None]]
    books: dict[str, Sequence[float]]
    extrapolation: dict[str, Sequence[float]]
    judge_model: str
    judge: dict[str, Sequence[float]]
    hyperparameters: dict[str, dict[str, tuple[Any, str]]]
    """By stage and setting: the value, and where it is from (paper, code or ours)."""
    complexity: dict[str, str]
    pretraining: PretrainingCost


@lru_cache
def paper() -> Paper:
    """The figures in tables.yaml."""
    tables = yaml.safe_load(TABLES.read_text(encoding="utf-8"))
    judge = tables.pop("judge")
    return Paper(
        **{
            **tables,
            "sets": {name: _paper_set(values) for name, values in tables["sets"].items()},
            "pretraining": PretrainingCost(**tables["pretraining"]),
        },
        judge_model=judge["model"],
        judge=judge["rows"],
    )


def _paper_set(values: Mapping[str, Any]) -> PaperSet:
    rows = {system: PaperRow(*row) for system, row in values["rows"].items()}
    return PaperSet(**{**values, "rows": rows})
