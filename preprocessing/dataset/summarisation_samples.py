"""From pairs of document and summary to samples."""

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.common.sentences import split_sentences
from pipeline.shards import Sample
from pipeline.tokenizer import AnyTokenizer
from preprocessing.dataset.samples import UNKNOWN, Coverage, at_record, make_sample
from preprocessing.dataset.statistics import Statistics
from preprocessing.readers.entries import BAD_ENCODING, NO_SUMMARY, Entry, text_fault
from preprocessing.readers.summarisation_sets import Summary


def samples(
    entries: Iterable[Entry],
    statistics: Statistics,
    *,
    tokenizer: AnyTokenizer,
    lengths: tuple[int, int],
    withheld: bool,
    max_unknown_share: float,
) -> Iterator[tuple[str, Sample]]:
    """(key, sample) of each usable pair (document, summary) of the entries.

    The target is the truncated summary; the metadata keep the whole summary, one sentence per line,
    and the whole document. `withheld`: a document all of whose summaries are None is kept, without
    references (a hidden test set). A document without a usable summary counts once. Texts of which
    the tokenizer lacks more than `max_unknown_share` of the characters are not usable.
    """
    for number, record, _ in entries:
        if isinstance(record, str):
            statistics.documents += 1
            statistics.excluded[record] += 1
            continue
        with at_record(number):
            pairs = list(_pairs(record["summaries"], withheld))
            source = tokenizer.encode(record["document"])
            made = 0
            for target in pairs:
                statistics.documents += 1
                if isinstance(target, str):
                    sample: Sample | str = target
                else:
                    metadata = {
                        "id": record["id"],
                        "references": ["\n".join(target)] if target else [],
                        "source_text": record["document"],
                    }
                    sample = pair_sample(
                        source, target, metadata, lengths, tokenizer, statistics, max_unknown_share
                    )
                if isinstance(sample, str):
                    statistics.excluded[sample] += 1
                    continue
                statistics.without_references += not target
                yield f"{number:08d}-{made}" if made else f"{number:08d}", sample
                made += 1


def pair_sample(
    source: list[int],
    summary: list[str],
    metadata: dict[str, Any],
    lengths: tuple[int, int],
    tokenizer: AnyTokenizer,
    statistics: Statistics,
    max_unknown_share: float = 1.0,
) -> Sample | str:
    """The sample of a document and its summary's sentences, or the reason for its exclusion.

    `source` are the ids of the metadata's `source_text`. Counts as `make_sample` does, and the
    characters that the tokenizer lacks.
    """
    target = tokenizer.encode_batch(summary)
    sides = (
        Coverage.of([metadata["source_text"]], [source], tokenizer),
        Coverage.of(summary, target, tokenizer),
    )
    if max(side.unknown_share for side in sides) > max_unknown_share:
        return UNKNOWN
    sample = make_sample(
        with_prefix([source], tokenizer), with_prefix(target, tokenizer),
        metadata, lengths, tokenizer, statistics,
    )  # fmt: skip
    if isinstance(sample, Sample):
        (sides[0] + sides[1]).count(statistics)
    return sample


def _pairs(summaries: list[Summary], withheld: bool) -> Iterator[list[str] | str]:
    """Each summary's sentences or reason for exclusion; a withheld summary has no sentences."""
    if withheld and all(summary is None for summary in summaries):
        yield []
        return
    pairs = [_sentences(summary) for summary in summaries] or [NO_SUMMARY]
    if all(isinstance(pair, str) for pair in pairs):
        pairs = [BAD_ENCODING if BAD_ENCODING in pairs else NO_SUMMARY]
    yield from pairs


def _sentences(summary: Summary) -> list[str] | str:
    """A summary's sentences, or the reason for its exclusion."""
    text = "\n".join(summary) if isinstance(summary, list) else summary
    fault = text_fault(text)
    if text is None or fault:
        return BAD_ENCODING if fault == BAD_ENCODING else NO_SUMMARY
    if isinstance(summary, list):  # a line of a reference is a sentence
        return [sentence for line in summary if (sentence := " ".join(line.split()))]
    return split_sentences(text)


def with_prefix(sentences: list[list[int]], tokenizer: AnyTokenizer) -> list[list[int]]:
    """The sentences, with the ids that the tokenizer's model expects before a text."""
    if tokenizer.prefix_ids and sentences:
        return [[*tokenizer.prefix_ids, *sentences[0]], *sentences[1:]]
    return sentences
