"""What a finished evaluation holds, as the other metrics read it: summaries, references, texts."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.evaluation.predictions import Predictions
from pipeline.evaluation.run import RESULTS, Examples
from pipeline.shards import Dataset


@dataclass(frozen=True)
class Summary:
    """One example: its position in the test set, what was written, what is compared with it."""

    index: int
    id: str
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
        counts = {
            "empty predictions": sum(not one.prediction.strip() for one in self.summaries),
            "empty references": sum(
                not text.strip() for one in self.summaries for text in one.references
            ),
            "ids of more than one example, told apart by position": sum(
                count > 1 for count in ids.values()
            ),
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
        examples = Examples(dataset)
        return lambda index: examples[index].document


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
        systems, count = list(results["systems"]), int(results["examples"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged; delete it and evaluate again") from None
    if system not in systems:
        raise ValueError(f"{folder} has no summaries of {system}, only of {', '.join(systems)}")
    predictions = Predictions(folder, system).path
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
        index, id, prediction = record["index"], record["id"], record["prediction"]
        references = record.get("references")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{where}: not a prediction; evaluate again") from None
    if not references:
        raise ValueError(f"{where}: example {id} has no reference to score against")
    if not all(isinstance(text, str) for text in (prediction, *references)):
        raise ValueError(f"{where}: example {id} holds something that is not text")
    return Summary(index, id, prediction, references)
