"""How far a model reads: its loss with each tenth of the source exchanged for another document's.

The records of an evaluation are `losses-model.jsonl`, one a document: `index`; `tokens`, of the
reference; `losses`, of the reference in nats, summed over its tokens: first with the true source,
then with each tenth of it exchanged. A document that is left out has `left_out`, the reason.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from pipeline.scoring.bootstrap import intervals
from pipeline.scoring.predictions import Predictions, Record

PARTS = 10
BY_POSITION, DOCUMENTS = "source_use_by_position", "source_use_documents"
"""Names in results.json: the rises, and how many documents were measured and left out."""
TOO_SHORT, NO_REFERENCE = "too_short", "without_reference"

Rise = TypedDict(
    "Rise",
    {"part": int, "from": float, "to": float, "rise": float, "low": float, "high": float},
)
"""A part of the source, from 1; the shares of the source where it begins and ends; the rise of the
loss without it, in nats per target token, with its 95 % bootstrap interval over documents."""


class Losses(Predictions):
    """The losses of `system` in `folder`, kept as predictions are."""

    kinds = ("losses",)


def rises(records: Sequence[Record]) -> list[Rise]:
    """The mean rise of the loss over the target tokens of all measured documents, by part.

    Raises ValueError where none was measured.
    """
    examples = []
    for record in _measured(records):
        true, *changed = record["losses"]
        examples.append(
            {"tokens": record["tokens"], **{str(k): loss - true for k, loss in enumerate(changed)}}
        )
    names = [str(part) for part in range(PARTS)]
    derived = {f"rise {name}": _a_token(name) for name in names}
    found = intervals(examples, derived=derived)
    return [
        Rise(
            {
                "part": part + 1,
                "from": part / PARTS,
                "to": (part + 1) / PARTS,
                "rise": mean["value"],
                "low": mean["low"],
                "high": mean["high"],
            }
        )
        for part in range(PARTS)
        for mean in [found[f"rise {part}"]]
    ]


def _a_token(name: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    return lambda means: means[name] / means["tokens"]


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """What results.json says of the records."""
    left_out = Counter(record["left_out"] for record in records if "left_out" in record)
    counts = {reason: left_out[reason] for reason in (TOO_SHORT, NO_REFERENCE)}
    return {
        BY_POSITION: rises(records),
        DOCUMENTS: {"measured": len(_measured(records)), **counts},
    }


def mean_over_seeds(seeds: Sequence[Sequence[Record]]) -> list[Record]:
    """Each document's mean losses over seeds, whose evaluations are of the same documents.

    Raises ValueError where they are not.
    """
    tokens = [[record.get("tokens") for record in records] for records in seeds]
    if any(some != tokens[0] for some in tokens):
        raise ValueError(
            "the seeds' losses are of different documents; evaluate all of them on the same test "
            "set"
        )
    return [
        {**records[0], "losses": np.mean([one["losses"] for one in records], axis=0).tolist()}
        for records in zip(*map(_measured, seeds), strict=True)
    ]


def _measured(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if "left_out" not in record]
