"""Evaluation texts inside training texts: word n-grams that both have.

13 words are the usual length (Brown et al. 2020, appendix C; in lower case, without punctuation).
Evaluation texts of fewer words cannot be found.
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.common.command_line import count_from, shown
from pipeline.common.stores import is_url, url_of
from pipeline.shards import Dataset
from preprocessing.readers.entries import Entry, Item
from preprocessing.readers.inputs import describe_input
from preprocessing.readers.ngrams import distinct, ngram_hashes, normalised_words, word_hashes
from preprocessing.readers.records import read_records

NGRAM = 13
LEAKED = "has an evaluation text"


@dataclass(frozen=True)
class EvaluationTexts:
    """The texts of dataset folders and files of records, and what counts as one of them."""

    paths: tuple[Path, ...]
    index: Path
    """The file for their n-grams, 16 bytes each, which the processes of a machine share."""
    ngram: int = NGRAM
    share: float = 0.0
    """Of an evaluation text's n-grams, those that a training text must have; 0: any one."""

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        names = [
            f"{shown(path.name)}, {Dataset(path).fingerprint[:16]}"
            if path.is_dir()
            else describe_input(path)
            for path in self.paths
        ]
        return {"decontaminate": {"texts": names, "ngram": self.ngram, "share": self.share}}

    def build(self) -> np.ndarray:
        """(2, n-grams) uint64, sorted: the distinct n-grams of each text, and the text's number.

        Raises ValueError where no text is long enough, or the texts cannot be read.
        """
        found = [
            np.stack([grams, np.full_like(grams, number)])
            for number, text in enumerate(text for path in self.paths for text in _texts(path))
            if len(grams := self._ngrams(text))
        ]
        if not found:
            names = " ".join(str(path) for path in self.paths)
            raise ValueError(
                f"--decontaminate {names}: no text has {self.ngram} words (--decontaminate_ngram), "
                "so nothing could be found"
            )
        rows = np.concatenate(found, axis=1)
        return rows[:, np.argsort(rows[0], kind="stable")]

    def check(self) -> None:
        """Raise as `build` does, before there is a record that would be named."""
        _ = self._rows

    def has_part_of(self, text: str) -> bool:
        """Whether a training text holds an evaluation text, or `share` of one."""
        grams = self._ngrams(text)
        hashes, texts = self._rows
        starts = np.searchsorted(hashes, grams)
        inside = starts < len(hashes)
        grams, starts = grams[inside], starts[inside]
        shared = hashes[starts] == grams
        if not self.share or not shared.any():
            return bool(shared.any())
        ends = np.searchsorted(hashes, grams[shared], "right")
        spans = zip(starts[shared].tolist(), ends.tolist(), strict=True)
        found, counts = np.unique(
            np.concatenate([texts[start:end] for start, end in spans]), return_counts=True
        )
        return bool(np.any(counts >= self.share * self._sizes[found.astype(np.intp)]))

    def screen(self, entry: Entry) -> Entry:
        """A pair's entry {document, summaries}, or the same with the reason for its exclusion."""
        if isinstance(entry.record, str):
            return entry
        texts = _strings([entry.record["document"], *entry.record["summaries"]])
        return entry._replace(record=LEAKED) if any(map(self.has_part_of, texts)) else entry

    def _ngrams(self, text: str) -> np.ndarray:
        return distinct(ngram_hashes(word_hashes(normalised_words(text)), self.ngram))

    @cached_property
    def _rows(self) -> np.ndarray:
        return np.load(self.index, mmap_mode="r") if self.index.exists() else self.build()

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Each text's n-grams."""
        return np.bincount(self._rows[1].astype(np.intp))


def _texts(path: Path) -> Iterator[str]:
    """The texts of a summarisation dataset, or all texts of a file of records.

    A document with several summaries comes once. Raises ValueError on a dataset that does not hold
    its texts.
    """
    if path.is_dir():
        dataset = Dataset(path)
        if dataset.manifest["kind"] != "summarisation":
            raise ValueError(
                f"--decontaminate {path} holds {dataset.manifest['kind']} samples, which do not "
                "keep their texts; give the files that it was made from"
            )
        before = None
        for metadata in (dataset[i].metadata for i in range(len(dataset))):
            if metadata["source_text"] != before:
                yield (before := metadata["source_text"])
            yield from metadata["references"]
        return
    for _, entry in read_records(Item(path), "test"):
        yield from _strings(entry.record.values() if isinstance(entry.record, dict) else ())


def _strings(values: Iterable[Any]) -> Iterator[str]:
    """The texts among a record's values, however deep; a list of texts is one text."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _strings(value.values())
        elif isinstance(value, list) and all(isinstance(part, str) for part in value):
            yield " ".join(value)
        elif isinstance(value, list):
            yield from _strings(value)


def add_decontamination_options(parser: Any, share: float) -> None:
    """Add --decontaminate and what counts as a leak."""
    parser.add_argument(
        "--decontaminate",
        nargs="+",
        metavar="FILE_OR_DATASET",
        help="exclude what has text of these evaluation sets: folders made by "
        "preprocessing.finetune, or files of records, all of whose texts count",
    )
    parser.add_argument(
        "--decontaminate_ngram",
        type=count_from(1),
        help=f"words in a row that count as the same text (default: {NGRAM})",
    )
    parser.add_argument(
        "--decontaminate_share",
        type=float,
        help="exclude what has this share of one evaluation text's n-grams; 0: any one n-gram "
        f"(default: {share})",
    )


def evaluation_texts_from(
    options: argparse.Namespace, index: Path, share: float
) -> EvaluationTexts | None:
    """The evaluation texts of a command line; `share` is the default.

    Raises ValueError on a path that is not there, on a share that is none, and on options that are
    of no use without texts.
    """
    if options.decontaminate is None:
        for name in ("decontaminate_ngram", "decontaminate_share"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name} is of use with --decontaminate only; give both")
        return None
    if options.decontaminate_share is not None:
        share = options.decontaminate_share
    if not 0 <= share <= 1:
        raise ValueError(f"--decontaminate_share is {share}, expected a share from 0 to 1")
    paths = tuple(map(Path, options.decontaminate))
    for path in paths:
        if is_url(path):
            raise ValueError(
                f"--decontaminate {url_of(path)} is on a store; copy it to a local one"
            )
        if not path.exists():
            raise ValueError(f"--decontaminate {path} is neither a dataset folder nor a file")
    return EvaluationTexts(paths, index, options.decontaminate_ngram or NGRAM, share)
