"""What a finished evaluation holds, as the other metrics read it: summaries, references, texts."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.evaluation.predictions import DOCUMENT_START, Predictions
from pipeline.evaluation.results import RESULTS
from pipeline.shards import Dataset


@dataclass(frozen=True)
class Summary:
    """One example: its position in the test set, what was written, what is compared with it."""

    index: int
    id: str
    beginning: str
    """Of the document."""
    prediction: str
    references: list[str]


@dataclass(frozen=True)
class Finished:
    """One system's summaries in an evaluation folder, by position; `sha256` is their file's."""

    folder: Path
    system: str
    summaries: list[Summary]
    sha256: str
    results: dict[str, Any]

    def remarks(self) -> list[str]:
        """What a reader of the scores should know of the texts, a line each."""
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
        """From a position to the document's whole text, read from the dataset folder `data`.

        None takes the folder that was evaluated. Raises ValueError when the dataset is another.
        """
        data = data or Path(self.results["data"])
        dataset = Dataset(data)
        expected = self.results["settings"]["dataset"]["fingerprint"]
        if dataset.fingerprint != expected:
            raise ValueError(
                f"{data} (fingerprint {dataset.fingerprint}) is not the set that {self.folder} "
                f"evaluated ({expected}); give that one with --data"
            )
        places: dict[tuple[str, str], int] = {}
        for place in range(len(dataset)):
            metadata = dataset[place].metadata
            key = metadata["id"], metadata["source_text"][:DOCUMENT_START]
            places.setdefault(key, place)  # several pairs of one document have the same text
        keys = [(one.id, one.beginning) for one in self.summaries]
        if missing := [id for id, beginning in keys if (id, beginning) not in places]:
            raise ValueError(f"{data} lacks {len(missing)} documents, among them {missing[0]}")
        return lambda index: dataset[places[keys[index]]].metadata["source_text"]


def read_finished(folder: Path, system: str) -> Finished:
    """The summaries of one system. Raises ValueError unless the evaluation is there and whole."""
    path = folder / RESULTS
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no {RESULTS}, so no finished evaluation; run "
            f"`python pipeline/evaluate.py --output {folder}` to its end"
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
    return Finished(folder, system, summaries, hashlib.sha256(content).hexdigest(), results)


def _summary(line: bytes, where: str) -> Summary:
    try:
        record = json.loads(line)
        index, references = record["index"], record["references"]
        id, beginning, prediction = record["id"], record["document"], record["prediction"]
        if not all(isinstance(text, str) for text in (id, beginning, prediction, *references)):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{where}: no prediction with its id, document and references; evaluate again"
        ) from None
    return Summary(index, id, beginning, prediction, references)
