"""Counts of documents read, kept and excluded, and the lengths of the samples."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SUMS = (
    "documents", "without_references", "truncated_sources", "truncated_targets", "characters",
    "unknown_characters",
)  # fmt: skip


@dataclass
class Statistics:
    """Counts of one item or a sum of items. Lengths are in ids, EOS included, before truncation."""

    documents: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    without_references: int = 0
    truncated_sources: int = 0
    truncated_targets: int = 0
    characters: int = 0
    unknown_characters: int = 0
    """Characters of the samples' whole texts that the tokenizer lacks."""
    source_lengths: Counter[int] = field(default_factory=Counter)
    target_lengths: Counter[int] = field(default_factory=Counter)

    @property
    def kept(self) -> int:
        """Documents that became samples."""
        return self.source_lengths.total()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the keys of counters are sorted."""
        return {
            name: {str(key): value[key] for key in sorted(value)}
            if isinstance(value, Counter)
            else value
            for name, value in vars(self).items()
        }

    def add(self, stored: dict[str, Any]) -> None:
        """Add the `to_json` of another item."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + stored[name])
        self.excluded.update(stored["excluded"])
        for mine, name in (
            (self.source_lengths, "source_lengths"),
            (self.target_lengths, "target_lengths"),
        ):
            mine.update({int(length): count for length, count in stored[name].items()})

    def counts(self) -> dict[str, Any]:
        """The manifest's `counts`: documents = kept + all of excluded."""
        return {
            "documents": self.documents,
            "kept": self.kept,
            "excluded": dict(sorted(self.excluded.items())),
            **({"without_references": self.without_references} if self.without_references else {}),
            "truncated_sources": self.truncated_sources,
            "truncated_targets": self.truncated_targets,
            "characters": self.characters,
            "unknown_characters": self.unknown_characters,
        }


def length_summary(lengths: Counter[int]) -> dict[str, Any]:
    """Mean, median, 90th percentile, maximum and histogram of {length: count}, in ids.

    All but the histogram are columns of the paper's table of data sets (appendix).
    """
    values = np.array(sorted(lengths))
    counts = np.array([lengths[int(value)] for value in values])
    ends = counts.cumsum()

    def quantile(share: float) -> int:
        return int(values[np.searchsorted(ends, share * ends[-1])])

    return {
        "mean": round(float((values * counts).sum() / ends[-1]), 2),
        "median": quantile(0.5),
        "p90": quantile(0.9),
        "max": int(values[-1]),
        "histogram": histogram(lengths),
    }


def histogram(lengths: Counter[int]) -> dict[str, list[int]]:
    """The number of lengths in each (edges[i - 1], edges[i]]; edges are powers of two from 1."""
    bins = max((length - 1).bit_length() for length in lengths) + 1
    counts = [0] * bins
    for length, count in lengths.items():
        counts[(length - 1).bit_length()] += count
    return {"edges": [2**k for k in range(bins)], "counts": counts}
