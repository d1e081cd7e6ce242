"""From tokenised sentences to samples."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from pipeline.shards import ID_DTYPES, Sample, id_dtype_for
from pipeline.tokenizer import AnyTokenizer
from preprocessing.dataset.statistics import Statistics, share_name
from preprocessing.readers.entries import EMPTY

UNKNOWN = "unknown characters"
MAX_UNKNOWN_SHARE = 0.5


@dataclass(frozen=True)
class Coverage:
    """Characters of texts, and how many of them the tokenizer lacks."""

    characters: int
    unknown: int

    @classmethod
    def of(
        cls, texts: Sequence[str], rows: Sequence[Sequence[int]], tokenizer: AnyTokenizer
    ) -> "Coverage":
        """The coverage of texts whose ids are `rows`."""
        return cls(sum(map(len, texts)), sum(map(tokenizer.unknown_characters, texts, rows)))

    @property
    def unknown_share(self) -> float:
        """0 to 1."""
        return self.unknown / max(self.characters, 1)

    def count(self, statistics: Statistics) -> None:
        """Add a sample with the characters of its texts."""
        statistics.characters += self.characters
        statistics.unknown_characters += self.unknown
        if statistics.unknown_shares is not None:
            statistics.unknown_shares[share_name(self.unknown_share)] += 1

    def __add__(self, other: "Coverage") -> "Coverage":
        """Of both together."""
        return Coverage(self.characters + other.characters, self.unknown + other.unknown)


def make_sample(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    metadata: dict[str, Any],
    lengths: tuple[int, int],
    tokenizer: AnyTokenizer,
    statistics: Statistics,
) -> Sample | str:
    """Join sentences (rows of ids), truncate to `lengths` (source, target; 0: no limit), add EOS.

    Lengths include EOS. Counts lengths and truncations in `statistics`, and adds
    `target_sentence_ends` to the metadata. Returns the reason for exclusion if the source has no
    ids, or the target has sentences but no ids; a target without sentences is EOS alone.
    """
    sides = [list(chain.from_iterable(sentences)) for sentences in (source, target)]
    if not sides[0] or (target and not sides[1]):
        return EMPTY
    kept = [
        ids[: length - 1] if length else ids for ids, length in zip(sides, lengths, strict=True)
    ]
    statistics.source_lengths[len(sides[0]) + 1] += 1
    statistics.target_lengths[len(sides[1]) + 1] += 1
    statistics.truncated_sources += len(kept[0]) < len(sides[0])
    statistics.truncated_targets += len(kept[1]) < len(sides[1])
    dtype = ID_DTYPES[id_dtype_for(tokenizer.vocab_size)]
    return Sample(
        np.array([*kept[0], tokenizer.eos_id], dtype),
        np.array([*kept[1], tokenizer.eos_id], dtype),
        {
            **metadata,
            "target_sentence_ends": sentence_ends(target, len(kept[1])),
        },
    )


@contextmanager
def at_record(number: int) -> Iterator[None]:
    """Name the record in an error that stops the job."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"record {number}: {error}") from error
    except Exception as error:
        raise RuntimeError(f"record {number}: {type(error).__name__}: {error}") from error


def sentence_ends(sentences: Sequence[Sequence[int]], length: int) -> list[int]:
    """The end (exclusive) of each sentence when all are joined and truncated to `length` ids.

    A truncated sentence is the last one.
    """
    ends = list(accumulate(map(len, sentences)))
    if ends and ends[-1] > length:
        ends = [*ends[: bisect_left(ends, length)], length]
    return ends


def check_unknown_share(share: float) -> None:
    """Raise ValueError unless the option is a share."""
    if not 0 <= share <= 1:
        raise ValueError(
            f"--max_unknown_share is {share}, expected a share from 0 to 1 (1: keep all documents)"
        )


def check_lengths(source_length: int, target_length: int) -> None:
    """Raise ValueError unless each length has room for one id and EOS, or is 0 for no limit."""
    for name, length in (("source_length", source_length), ("target_length", target_length)):
        if length < 2 and length != 0:
            raise ValueError(f"--{name} is {length}, expected at least 2 (one id and EOS), or 0")
