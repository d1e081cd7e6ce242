"""A finished evaluation as the other metrics read it: summaries, references, documents."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.scoring.predictions import DOCUMENT_START, RESULTS, Predictions
from pipeline.shards import Dataset


@dataclass(frozen=True)
class EvaluatedSummary:
    """One example: its position in the test set, the prediction and its references."""

    index: int
    id: str
    beginning: str
    """The first characters of the document."""
    prediction: str
    references: list[str]


@dataclass(frozen=True)
class FinishedEvaluation:
    """One system's summaries in an evaluation folder, by position; `sha256` is their file's."""

    folder: Path
    system: str
    summaries: list[EvaluatedSummary]
    sha256: str
    results: dict[str, Any]

    def remarks(self) -> list[str]:
        """Irregular texts that a reader of the scores should know about, one line per kind."""
        ids = Counter(one.id for one in self.summaries)
        references = [text for one in self.summaries for text in one.references]
        counts = {
            "empty predictions": sum(not one.prediction.strip() for one in self.summaries),
            "empty references": sum(not text.strip() for text in references),
            "documents without a reference": sum(not one.references for one in self.summaries),
            "ids of several documents": sum(count > 1 for count in ids.values()),
        }
        return [f"{self.system}: {count} {what}" for what, count in counts.items() if count]

    def documents(self, data: Path | None) -> Callable[[int], str]:
        """A function from a position to the document's whole text, read from the folder `data`.

        None: the folder that was evaluated. Raises ValueError when it holds another dataset.
        """
        data = data or Path(self.results["data"])
        dataset = Dataset(data)
        expected = self.results["settings"]["dataset"]["fingerprint"]
        if dataset.fingerprint != expected:
            raise ValueError(
                f"{data} (fingerprint {dataset.fingerprint}) is not the dataset evaluated in "
                f"{self.folder} ({expected}); give that one with --data"
            )
        places: dict[tuple[str, str], int] = {}
        for place in range(len(dataset)):
            metadata = dataset[place].metadata
            key = metadata["id"], metadata["source_text"][:DOCUMENT_START]
            places.setdefault(key, place)  # pairs of one document have the same text
        keys = [(one.id, one.beginning) for one in self.summaries]
        if missing := [id for id, beginning in keys if (id, beginning) not in places]:
            raise ValueError(f"{data} lacks {len(missing)} documents, among them {missing[0]}")
        return lambda index: dataset[places[keys[index]]].metadata["source_text"]


def read_finished(folder: Path, system: str) -> FinishedEvaluation:
    """The summaries of one system. Raises ValueError unless the evaluation is complete."""
    path = folder / RESULTS
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {RESULTS}: not a finished evaluation; complete it with "
            f"`python pipeline/evaluate.py --output {folder}`"
        )
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        count = int(results["settings"]["dataset"]["examples"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged; delete it and evaluate again") from None
    predictions = Predictions(folder, system).path
    if not predictions.is_file():
        raise ValueError(
            f"{folder} has no {predictions.name}; evaluate with {system} in --systems, or give "
            "another --system"
        )
    content = predictions.read_bytes()
    summaries = [
        _summary(line, f"{predictions}, line {number}")
        for number, line in enumerate(content.splitlines(), start=1)
    ]
    found = [summary.index for summary in summaries]
    if found != list(range(count)):
        twice = [str(index) for index, times in Counter(found).items() if times > 1]
        what = f"index {', '.join(twice)} twice" if twice else f"{len(found)} examples"
        raise ValueError(
            f"{predictions} holds {what}, expected 0 to {count - 1} in order; evaluate again"
        )
    return FinishedEvaluation(
        folder, system, summaries, hashlib.sha256(content).hexdigest(), results
    )


def _summary(line: bytes, where: str) -> EvaluatedSummary:
    try:
        record = json.loads(line)
        index, references = record["index"], record["references"]
        id, beginning, prediction = record["id"], record["document"], record["prediction"]
        if not all(isinstance(text, str) for text in (id, beginning, prediction, *references)):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{where}: not a prediction with id, document and references; evaluate again"
        ) from None
    return EvaluatedSummary(index, id, beginning, prediction, references)
