"""A summarisation set to shards: `python -m preprocessing.finetune --dataset NAME --input PATH`.

Alone, or on several processes: `mpirun --bind-to none -n N python -m preprocessing.finetune ...`.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from collections.abc import Iterable, Iterator
from functools import partial

from pipeline.command_line import Parser
from pipeline.huggingface_tokenizer import AnyTokenizer, open_tokenizer
from pipeline.shards import Sample
from preprocessing.command_line import HelpFormatter, add_common_options, check_lengths, run_command
from preprocessing.containers import Folder, find_items, split_name
from preprocessing.corpora import BAD_ENCODING, NO_SUMMARY, Entry, text_fault
from preprocessing.dry_run import check
from preprocessing.samples import make_sample
from preprocessing.sentences import SPLITTER, split_sentences
from preprocessing.statistics import Statistics
from preprocessing.summarisation_sets import FORMATS, SETS, Summary, read_set
from preprocessing.workers import Job, run

BLOCK_SIZE = 2**30  # bytes of an uncompressed file of JSON lines that make one shard


def samples(
    entries: Iterable[Entry],
    statistics: Statistics,
    *,
    tokenizer: AnyTokenizer,
    lengths: tuple[int, int],
    withheld: bool,
) -> Iterator[tuple[str, Sample]]:
    """(key, sample) of each usable pair (document, summary) of the entries.

    The target is the summary, cut; the metadata keep the summary, one sentence a line, and the
    document untruncated. `withheld`: a document all of whose summaries are None is kept, without
    references (a hidden test set). A document without a usable summary counts once.
    """
    for number, record, _ in entries:
        if isinstance(record, str):
            statistics.documents += 1
            statistics.excluded[record] += 1
            continue
        pairs = list(_pairs(record["summaries"], withheld))
        source = [tokenizer.encode(record["document"])]
        made = 0
        for target in pairs:
            statistics.documents += 1
            sample: Sample | str = (
                target
                if isinstance(target, str)
                else make_sample(
                    started(source, tokenizer),
                    started(tokenizer.encode_batch(target), tokenizer),
                    {
                        "id": record["id"],
                        "references": ["\n".join(target)] if target else [],
                        "source_text": record["document"],
                    },
                    lengths,
                    tokenizer,
                    statistics,
                )
            )
            if isinstance(sample, str):
                statistics.excluded[sample] += 1
                continue
            statistics.without_references += not target
            yield f"{number:08d}-{made}" if made else f"{number:08d}", sample
            made += 1


def _pairs(summaries: list[Summary], withheld: bool) -> Iterator[list[str] | str]:
    """The sentences of each summary, or why it cannot be used; withheld ones have no sentences."""
    if withheld and all(summary is None for summary in summaries):
        yield []
        return
    pairs = [_sentences(summary) for summary in summaries] or [NO_SUMMARY]
    if all(isinstance(pair, str) for pair in pairs):
        pairs = [BAD_ENCODING if BAD_ENCODING in pairs else NO_SUMMARY]
    yield from pairs


def _sentences(summary: Summary) -> list[str] | str:
    """A summary's sentences, or why it cannot be used."""
    text = "\n".join(summary) if isinstance(summary, list) else summary
    fault = text_fault(text)
    if text is None or fault:
        return BAD_ENCODING if fault == BAD_ENCODING else NO_SUMMARY
    if isinstance(summary, list):  # a line of a reference is a sentence
        return [sentence for line in summary if (sentence := " ".join(line.split()))]
    return split_sentences(text)


def started(sentences: list[list[int]], tokenizer: AnyTokenizer) -> list[list[int]]:
    """With what the tokenizer's model expects before a text."""
    if tokenizer.prefix_ids and sentences:
        return [[*tokenizer.prefix_ids, *sentences[0]], *sentences[1:]]
    return sentences


def main() -> None:
    """The command line."""
    options = _parser().parse_args()

    def prepare() -> Job:
        known = SETS[options.dataset]
        if options.format is not None and options.format not in known.formats:
            raise ValueError(
                f"--format {options.format} is none of {options.dataset}'s: "
                f"{', '.join(known.formats)}"
            )
        if options.root is not None and not Path(options.root).is_dir():
            raise ValueError(f"--root {options.root} is no folder")
        source_length, target_length = (
            default if chosen is None else chosen
            for chosen, default in (
                (options.source_length, known.source_length),
                (options.target_length, known.target_length),
            )
        )
        check_lengths(source_length, target_length)
        tokenizer = open_tokenizer(options.tokenizer)
        items = find_items(options.input, BLOCK_SIZE)
        folders = {
            f"folder {item.path.name}": f"{item.size} bytes"
            for item in items
            if isinstance(item, Folder)
        }
        split = split_name(options.split)
        return Job(
            output=Path(options.output),
            kind="summarisation",
            split=options.split,
            tokenizer=tokenizer,
            settings={
                "dataset": options.dataset,
                "format": options.format or "by keys",
                "source_length": source_length,
                "target_length": target_length,
                "sentence_splitter": SPLITTER,
                **folders,
            },
            items=items,
            read=partial(
                read_set,
                dataset=options.dataset,
                split=options.split,
                form=options.format,
                root=options.root and Path(options.root),
            ),
            samples=partial(
                samples,
                tokenizer=tokenizer,
                lengths=(source_length, target_length),
                withheld=split == "test",
            ),
            expected_samples=known.pairs.get(split) if known.pairs else None,
        )

    if options.dry_run:
        check(prepare, options.finish)
    else:
        run(prepare, options.finish, options.report)


def _parser() -> Parser:
    parser = Parser(
        prog="preprocessing.finetune",
        description="Make fine-tuning shards from a summarisation set: JSON lines, JSON documents "
        "or CSV, each possibly gzipped or in a .zip; Parquet; a folder of these. docs/data.md says "
        "where each set comes from.",
        formatter_class=HelpFormatter,
    )
    add_common_options(parser, None, None)
    parser.add_argument(
        "--dataset",
        required=True,
        choices=SETS,
        help="decides the lengths where none are given (those of the paper) and the forms a record "
        "may have; jsonl: id, document, summary (a text or a list of alternative texts)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="a record's form, where its keys do not tell"
    )
    parser.add_argument(
        "--root", help="where paths in BookSum's alignments begin; none: beside the input"
    )
    return parser


if __name__ == "__main__":
    run_command(main)
