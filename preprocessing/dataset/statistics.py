"""Counts of documents read, kept and excluded, and the lengths of the samples."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SUMS = (
    "documents", "without_references", "truncated_sources", "truncated_targets", "characters",
    "unknown_characters",
)  # fmt: skip
UNKNOWN_SHARES = {
    "none": 0.0,
    "up to 0.1 %": 0.001,
    "up to 1 %": 0.01,
    "up to 10 %": 0.1,
    "more": 1.0,
}


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
    unknown_shares: Counter[str] | None = field(default_factory=Counter)
    """Samples by the share of their characters that the tokenizer lacks, in UNKNOWN_SHARES.
    None where an item of an earlier version did not count them."""
    languages: Counter[str] = field(default_factory=Counter)
    """Samples by language, where it was identified."""
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
        self.languages.update(stored.get("languages", {}))
        if self.unknown_shares is not None and "unknown_shares" in stored:
            self.unknown_shares.update(stored["unknown_shares"])
        else:
            self.unknown_shares = None
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
            **self._by_share(),
            **({"languages": dict(sorted(self.languages.items()))} if self.languages else {}),
        }

    def _by_share(self) -> dict[str, dict[str, int]]:
        if self.unknown_shares is None:
            return {}
        return {"unknown_shares": {name: self.unknown_shares[name] for name in UNKNOWN_SHARES}}


def share_name(share: float) -> str:
    """The name in UNKNOWN_SHARES of a share from 0 to 1."""
    return next(name for name, most in UNKNOWN_SHARES.items() if share <= most)


def length_summary(lengths: Counter[int], limit: int) -> dict[str, Any]:
    """Mean, median, 90th percentile, maximum, sum and histogram of {length: count}, in ids.

    Also the sum after truncation to `limit` (0: none). Mean to maximum are columns of the paper's
    table of data sets (appendix).
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
        "tokens": int((values * counts).sum()),
        "tokens_kept": int((np.minimum(values, limit or values[-1]) * counts).sum()),
        "histogram": histogram(lengths),
    }


def histogram(lengths: Counter[int]) -> dict[str, list[int]]:
    """The number of lengths in each (edges[i - 1], edges[i]]; edges are powers of two from 1."""
    bins = max((length - 1).bit_length() for length in lengths) + 1
    counts = [0] * bins
    for length, count in lengths.items():
        counts[(length - 1).bit_length()] += count
    return {"edges": [2**k for k in range(bins)], "counts": counts}
