"""A summarisation set to shards: `python -m preprocessing.finetune --dataset jsonl --input FILE`.

Alone, or on several processes: `mpirun --bind-to none -n N python -m preprocessing.finetune ...`.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
from collections.abc import Iterable, Iterator
from functools import partial

from pipeline.shards import Sample
from pipeline.tokenizer import Tokenizer
from preprocessing.command_line import add_common_options, check_lengths, run_command
from preprocessing.corpora import Entry, Item, find_inputs
from preprocessing.samples import make_sample
from preprocessing.sentences import SPLITTER, split_sentences
from preprocessing.statistics import Statistics
from preprocessing.summarisation_sets import read_pairs
from preprocessing.workers import Job, run

READERS = {"jsonl": read_pairs}


def samples(
    entries: Iterable[Entry],
    statistics: Statistics,
    *,
    tokenizer: Tokenizer,
    source_length: int,
    target_length: int,
) -> Iterator[tuple[str, Sample]]:
    """(line number, sample) of each usable pair of a summarisation set.

    The target is the first summary; the metadata keep every summary and the source untruncated.
    """
    for number, record, _ in entries:
        statistics.documents += 1
        if isinstance(record, str):
            statistics.excluded[record] += 1
            continue
        references = [split_sentences(summary) for summary in record["summaries"]]
        sample = make_sample(
            [tokenizer.encode(record["document"])],
            tokenizer.encode_batch(references[0]),
            {
                "id": record["id"],
                "references": ["\n".join(sentences) for sentences in references],
                "source_text": record["document"],
            },
            (source_length, target_length),
            tokenizer.eos_id,
            statistics,
        )
        if isinstance(sample, str):
            statistics.excluded[sample] += 1
        else:
            yield f"{number:08d}", sample


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Make fine-tuning shards from a summarisation set.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_common_options(parser, source_length=4096, target_length=512)
    parser.add_argument(
        "--dataset",
        required=True,
        choices=READERS,
        help="the set's format; jsonl: JSON lines of id, document, summary (a text or a list of "
        "alternative texts)",
    )
    options = parser.parse_args()

    def prepare() -> Job:
        check_lengths(options.source_length, options.target_length)
        tokenizer = Tokenizer(options.tokenizer)
        lengths = {
            "source_length": options.source_length,
            "target_length": options.target_length,
        }
        return Job(
            output=Path(options.output),
            kind="summarisation",
            split=options.split,
            tokenizer=tokenizer,
            settings={"dataset": options.dataset, **lengths, "sentence_splitter": SPLITTER},
            items=[Item(path) for path in find_inputs(options.input)],
            read=READERS[options.dataset],
            samples=partial(samples, tokenizer=tokenizer, **lengths),
        )

    run(prepare, options.finish, options.report)


if __name__ == "__main__":
    run_command(main)
