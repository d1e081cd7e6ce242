"""From documents to samples: the gap sentences are the target, the others the source."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from pipeline.common.sentences import SPLITTER, split_sentences
from pipeline.shards import Sample
from pipeline.tokenizer import Tokenizer
from preprocessing.dataset.samples import (
    MAX_UNKNOWN_SHARE,
    UNKNOWN,
    Coverage,
    at_record,
    check_lengths,
    check_unknown_share,
    make_sample,
    sentence_ends,
)
from preprocessing.dataset.statistics import Statistics
from preprocessing.gap_sentences import GapSentences, document_draw, mask_gap_sentences
from preprocessing.readers.entries import Entry

TOO_FEW_SENTENCES = "too few sentences"
SHORT_SOURCE = "source too short"
BLOCK_CHARACTERS = 2**19


@dataclass(frozen=True)
class GapSampleSettings:
    """How a document becomes a sample; lengths in ids, EOS included."""

    gap_sentences: GapSentences
    mask_share: float = 0.0
    """Share of the gap sentences that a mask token replaces (LongT5 and PEGASUS: 0.9)."""
    source_length: int = 4096
    target_length: int = 910
    min_source_length: int = 0
    """Sources that are shorter before truncation are excluded, for a phase of long inputs."""
    max_unknown_share: float = MAX_UNKNOWN_SHARE
    """Documents of which the tokenizer lacks a larger share of the characters are excluded."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_lengths(self.source_length, self.target_length)
        check_unknown_share(self.max_unknown_share)
        if not 0 <= self.mask_share <= 1:
            raise ValueError(f"--mask_share is {self.mask_share}, expected a share from 0 to 1")
        if self.min_source_length < 0:
            raise ValueError(
                f"--min_source_length is {self.min_source_length}, expected ids, 0 for no minimum"
            )

    @property
    def is_random(self) -> bool:
        """Whether the samples depend on random numbers."""
        return self.gap_sentences.is_random or 0 < self.mask_share < 1

    def describe(self) -> dict[str, Any]:
        """The settings for the manifest, without options that are off."""
        chosen = {**asdict(self.gap_sentences), **asdict(self)}
        del chosen["gap_sentences"]
        if chosen["ratio_range"] is not None:
            chosen["ratio_range"] = list(chosen["ratio_range"])
        return {name: value for name, value in chosen.items() if value not in (None, False)} | {
            "sentence_splitter": SPLITTER
        }


@dataclass(frozen=True)
class GapDocument:
    """A text in sentences, with the draw of what is random about its sample."""

    number: int
    url: str
    sentences: list[str]
    draw: random.Random | None
    language: str | None


def samples(
    entries: Iterable[Entry],
    statistics: Statistics,
    *,
    tokenizer: Tokenizer,
    settings: GapSampleSettings,
) -> Iterator[tuple[str, Sample]]:
    """(key, sample) of each usable entry {text, url}, and language where it was identified.

    Sentences are selected on the whole document, then both sides are truncated (lengths in ids).
    """
    for block in _blocks(entries):
        statistics.documents += len(block)
        chosen = []
        for document, gaps in _with_gaps(block, settings, statistics):
            if gaps:
                chosen.append((document, gaps))
            else:
                statistics.excluded[TOO_FEW_SENTENCES] += 1
        ids = iter(tokenizer.encode_batch([s for d, _ in chosen for s in d.sentences]))
        for document, gaps in chosen:
            rows = list(islice(ids, len(document.sentences)))
            with at_record(document.number):
                sample = _sample(document, gaps, rows, tokenizer, settings, statistics)
            if isinstance(sample, str):
                statistics.excluded[sample] += 1
            else:
                yield f"{document.number:08d}", sample


def _blocks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The entries in lists of about BLOCK_CHARACTERS: each step over many documents is a third
    faster than one document at a time, as each call to SentencePiece starts a thread."""
    block: list[Entry] = []
    characters = 0
    for entry in entries:
        block.append(entry)
        characters += (
            len(entry.record) if isinstance(entry.record, str) else len(entry.record["text"])
        )
        if characters >= BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    yield block


def _with_gaps(
    block: Sequence[Entry], settings: GapSampleSettings, statistics: Statistics
) -> Iterator[tuple[GapDocument, list[int]]]:
    """The documents of a block with their gap sentences; counts the excluded entries."""
    documents = []
    for number, record, _ in block:
        if isinstance(record, str):
            statistics.excluded[record] += 1
            continue
        with at_record(number):
            text = record["text"]
            draw = document_draw(text, settings.seed) if settings.is_random else None
            documents.append(
                GapDocument(
                    number, record["url"], split_sentences(text), draw, record.get("language")
                )
            )
    gaps = settings.gap_sentences.select_all(
        [document.sentences for document in documents], [document.draw for document in documents]
    )
    return zip(documents, gaps, strict=True)


def _sample(
    document: GapDocument,
    gaps: list[int],
    ids: list[list[int]],
    tokenizer: Tokenizer,
    settings: GapSampleSettings,
    statistics: Statistics,
) -> Sample | str:
    """The sample of a document whose sentences have these ids, or the reason for its exclusion."""
    coverage = Coverage.of(document.sentences, ids, tokenizer)
    if coverage.unknown_share > settings.max_unknown_share:
        return UNKNOWN
    mask = (tokenizer.sentinel(0), settings.mask_share, document.draw)
    source = mask_gap_sentences(ids, gaps, *(mask if settings.mask_share else ()))
    if sum(map(len, source)) + 1 < settings.min_source_length:
        return SHORT_SOURCE
    target = [ids[i] for i in gaps]
    lengths = (settings.source_length, settings.target_length)
    metadata = {"url": document.url, "gap_sentences": gaps}
    sample = make_sample(source, target, metadata, lengths, tokenizer, statistics)
    if isinstance(sample, Sample):
        coverage.count(statistics)
        if document.language:
            statistics.languages[document.language] += 1
        ends = sentence_ends(source, len(sample.source) - 1)
        sample.metadata["source_sentence_ends"] = ends
    return sample
