"""From documents to samples: the gap sentences are the target, the others the source."""

import random
from collections.abc import Iterable, Iterator
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
    """A text with its selected gap sentences."""

    number: int
    url: str
    sentences: list[str]
    gaps: list[int]
    draw: random.Random | None


def samples(
    entries: Iterable[Entry],
    statistics: Statistics,
    *,
    tokenizer: Tokenizer,
    settings: GapSampleSettings,
) -> Iterator[tuple[str, Sample]]:
    """(key, sample) of each usable entry {text, url}.

    Sentences are selected on the whole document, then both sides are truncated (lengths in ids).
    """
    for block in _blocks(entries):
        documents = []
        for entry in block:
            statistics.documents += 1
            with at_record(entry.number):
                chosen = _select_gaps(entry, settings)
            if isinstance(chosen, str):
                statistics.excluded[chosen] += 1
            else:
                documents.append(chosen)
        ids = iter(tokenizer.encode_batch([s for d in documents for s in d.sentences]))
        for document in documents:
            rows = list(islice(ids, len(document.sentences)))
            with at_record(document.number):
                sample = _sample(document, rows, tokenizer, settings, statistics)
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


def _select_gaps(entry: Entry, settings: GapSampleSettings) -> GapDocument | str:
    """A document with its gap sentences, or the reason for its exclusion."""
    number, record, _ = entry
    if isinstance(record, str):
        return record
    text, url = record["text"], record["url"]
    draw = document_draw(text, settings.seed) if settings.is_random else None
    sentences = split_sentences(text)
    gaps = settings.gap_sentences.select(sentences, draw)
    return GapDocument(number, url, sentences, gaps, draw) if gaps else TOO_FEW_SENTENCES


def _sample(
    document: GapDocument,
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
    source = mask_gap_sentences(ids, document.gaps, *(mask if settings.mask_share else ()))
    if sum(map(len, source)) + 1 < settings.min_source_length:
        return SHORT_SOURCE
    target = [ids[i] for i in document.gaps]
    lengths = (settings.source_length, settings.target_length)
    metadata = {"url": document.url, "gap_sentences": document.gaps}
    sample = make_sample(source, target, metadata, lengths, tokenizer, statistics)
    if isinstance(sample, Sample):
        coverage.count(statistics)
        ends = sentence_ends(source, len(sample.source) - 1)
        sample.metadata["source_sentence_ends"] = ends
    return sample
