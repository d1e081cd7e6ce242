"""C4 to gap-sentence shards: `python -m preprocessing.pretrain --input GLOB --tokenizer MODEL ...`.

Alone, or on several processes: `mpirun --bind-to none -n N python -m preprocessing.pretrain ...`.
Several such jobs may fill one folder at once.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import islice
from typing import Any

from pipeline.command_line import Parser
from pipeline.shards import Sample
from pipeline.tokenizer import Tokenizer
from preprocessing.command_line import HelpFormatter, add_common_options, check_lengths, run_command
from preprocessing.corpora import Entry, find_inputs, read_c4, split_items
from preprocessing.dry_run import check
from preprocessing.filters import Filters, add_filter_options, filters_from
from preprocessing.gap_sentences import (
    METRICS,
    STRATEGIES,
    GapSentences,
    document_draw,
    mask_gap_sentences,
)
from preprocessing.samples import make_sample, sentence_ends
from preprocessing.sentences import SPLITTER, split_sentences
from preprocessing.statistics import Statistics
from preprocessing.workers import Job, run

TOO_FEW_SENTENCES = "too few sentences"
SHORT_SOURCE = "source too short"
BLOCK_SIZE = 256 * 2**20
BLOCK_CHARACTERS = 2**19


@dataclass(frozen=True)
class Settings:
    """How a document becomes a sample; lengths in ids, EOS included."""

    gap_sentences: GapSentences
    mask_share: float = 0.0
    """Share of the gap sentences that leave a mask token behind (LongT5 and PEGASUS: 0.9)."""
    source_length: int = 4096
    target_length: int = 910
    min_source_length: int = 0
    """Sources that are shorter before any cut are left out: for a phase of long inputs."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_lengths(self.source_length, self.target_length)
        if not 0 <= self.mask_share <= 1:
            raise ValueError(f"--mask_share is {self.mask_share}, expected a share from 0 to 1")
        if self.min_source_length < 0:
            raise ValueError(
                f"--min_source_length is {self.min_source_length}, expected ids, 0 for no minimum"
            )

    @property
    def is_random(self) -> bool:
        """Whether anything is drawn."""
        return self.gap_sentences.is_random or 0 < self.mask_share < 1

    def describe(self) -> dict[str, Any]:
        """For the manifest: what is set, without options that are off."""
        chosen = {**asdict(self.gap_sentences), **asdict(self)}
        del chosen["gap_sentences"]
        if chosen["ratio_range"] is not None:
            chosen["ratio_range"] = list(chosen["ratio_range"])
        return {name: value for name, value in chosen.items() if value not in (None, False)} | {
            "sentence_splitter": SPLITTER
        }


@dataclass(frozen=True)
class Document:
    """A text whose gap sentences are chosen."""

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
    settings: Settings,
    filters: Filters,
) -> Iterator[tuple[str, Sample]]:
    """(key, sample) of each usable entry {text, url}.

    Sentences are chosen on the whole document, then both sides are cut to their lengths (in ids).
    """
    for block in _blocks(entries):
        documents = []
        for entry in block:
            statistics.documents += 1
            chosen = _choose(entry, settings, filters)
            if isinstance(chosen, str):
                statistics.excluded[chosen] += 1
            else:
                documents.append(chosen)
        ids = iter(tokenizer.encode_batch([s for d in documents for s in d.sentences]))
        for document in documents:
            rows = list(islice(ids, len(document.sentences)))
            sample = _sample(document, rows, tokenizer, settings, statistics)
            if isinstance(sample, str):
                statistics.excluded[sample] += 1
            else:
                yield f"{document.number:08d}", sample


def _blocks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The entries in lists of about BLOCK_CHARACTERS: one step at a time over many documents is a
    third faster than one document at a time, and a call to SentencePiece starts a thread."""
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


def _choose(entry: Entry, settings: Settings, filters: Filters) -> Document | str:
    """A document's gap sentences, or why there are none."""
    number, record, _ = entry
    if isinstance(record, str):
        return record
    text, url = record["text"], record["url"]
    if fault := filters.fault(text, url):
        return fault
    draw = document_draw(text, settings.seed) if settings.is_random else None
    sentences = split_sentences(text)
    gaps = settings.gap_sentences.select(sentences, draw)
    return Document(number, url, sentences, gaps, draw) if gaps else TOO_FEW_SENTENCES


def _sample(
    document: Document,
    ids: list[list[int]],
    tokenizer: Tokenizer,
    settings: Settings,
    statistics: Statistics,
) -> Sample | str:
    """The sample of a document whose sentences have these ids, or why it gives none."""
    mask = (tokenizer.sentinel(0), settings.mask_share, document.draw)
    source = mask_gap_sentences(ids, document.gaps, *(mask if settings.mask_share else ()))
    if sum(map(len, source)) + 1 < settings.min_source_length:
        return SHORT_SOURCE
    target = [ids[i] for i in document.gaps]
    lengths = (settings.source_length, settings.target_length)
    metadata = {"url": document.url, "gap_sentences": document.gaps}
    sample = make_sample(source, target, metadata, lengths, tokenizer, statistics)
    if isinstance(sample, Sample):
        ends = sentence_ends(source, len(sample.source) - 1)
        sample.metadata["source_sentence_ends"] = ends
    return sample


def main() -> None:
    """The command line."""
    options = _parser().parse_args()

    def prepare() -> Job:
        settings = _settings(options)
        filters, filter_settings = filters_from(options)
        tokenizer = Tokenizer(options.tokenizer)
        if options.block_size < 1:
            raise ValueError(f"--block_size is {options.block_size}, expected bytes, at least 1")
        items = split_items(find_inputs(options.input), options.block_size)
        blocks = {"block_size": options.block_size} if options.block_size != BLOCK_SIZE else {}
        return Job(
            output=Path(options.output),
            kind="pretraining",
            split=options.split,
            tokenizer=tokenizer,
            settings={**settings.describe(), **filter_settings, **blocks},
            items=items,
            read=read_c4,
            samples=partial(samples, tokenizer=tokenizer, settings=settings, filters=filters),
            deduplicate=options.deduplicate,
        )

    if options.dry_run:
        check(prepare, options.finish)
    else:
        run(prepare, options.finish, options.report)


def _parser() -> Parser:
    parser = Parser(
        prog="preprocessing.pretrain",
        description="Make gap-sentence pre-training shards from files in C4's format "
        "(JSON lines with text and url; .json, .jsonl or .json.gz).",
        formatter_class=HelpFormatter,
    )
    defaults = Settings(GapSentences())
    add_common_options(parser, defaults.source_length, defaults.target_length)
    group = parser.add_argument_group("gap sentences")
    gaps = defaults.gap_sentences
    group.add_argument(
        "--strategy", default=gaps.strategy, choices=STRATEGIES, help="how to choose"
    )
    group.add_argument("--metric", default=gaps.metric, choices=METRICS, help="of ROUGE-1")
    group.add_argument(
        "--ratio", type=float, default=gaps.ratio, help="share of a document's sentences"
    )
    group.add_argument(
        "--ratio_range",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="draw each document's ratio (PEGASUS: 0.15 0.45)",
    )
    group.add_argument("--stemming", action="store_true", help="score Porter stems")
    group.add_argument("--stopwords", action="store_true", help="leave stopwords out of the score")
    group.add_argument(
        "--noise", type=float, default=gaps.noise, help="on each score (PEGASUS: 0.2)"
    )
    group.add_argument(
        "--minimum_sentences",
        type=int,
        default=gaps.minimum_sentences,
        help="1: short documents give one sentence too (PEGASUS)",
    )
    group.add_argument(
        "--mask_share",
        type=float,
        default=defaults.mask_share,
        help="share of the gap sentences that leave a mask token (sentinel 0) behind, the others "
        "staying as they are (PEGASUS and LongT5: 0.9); 0: all are removed without one",
    )
    group.add_argument("--seed", type=int, default=defaults.seed, help="of what is drawn")
    group = parser.add_argument_group("documents")
    group.add_argument(
        "--min_source_length",
        type=int,
        default=defaults.min_source_length,
        help="leave out shorter sources, in ids before any cut: for a phase of long inputs",
    )
    group.add_argument(
        "--deduplicate", action="store_true", help="keep the first of exactly equal texts"
    )
    group.add_argument(
        "--block_size",
        type=int,
        default=BLOCK_SIZE,
        help="bytes of an uncompressed file that make one shard",
    )
    add_filter_options(parser)
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    """Raises ValueError on options out of range."""
    chosen = {field.name: getattr(options, field.name) for field in fields(GapSentences)}
    if chosen["ratio_range"] is not None:
        chosen["ratio_range"] = tuple(chosen["ratio_range"])
    own = [field.name for field in fields(Settings) if field.name != "gap_sentences"]
    return Settings(GapSentences(**chosen), **{name: getattr(options, name) for name in own})


if __name__ == "__main__":
    run_command(main)
