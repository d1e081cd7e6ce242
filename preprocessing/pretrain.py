"""C4 to gap-sentence shards: `python -m preprocessing.pretrain --input GLOB --tokenizer MODEL ...`.

Alone, or on several processes: `mpirun --bind-to none -n N python -m preprocessing.pretrain ...`.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
from collections.abc import Iterator
from functools import partial

from pipeline.shards import Sample
from pipeline.tokenizer import Tokenizer
from preprocessing.corpora import find_inputs, read_c4
from preprocessing.gap_sentences import STRATEGIES, select_gap_sentences
from preprocessing.sentences import SPLITTER, split_sentences
from preprocessing.workers import (
    Job,
    Statistics,
    add_common_options,
    check_lengths,
    make_sample,
    run,
    run_command,
)

TOO_FEW_SENTENCES = "too few sentences"


def samples(
    path: Path,
    statistics: Statistics,
    *,
    tokenizer: Tokenizer,
    ratio: float,
    strategy: str,
    source_length: int,
    target_length: int,
) -> Iterator[tuple[int, Sample]]:
    """(line number, sample) of each usable document of a file in C4's format.

    Sentences are chosen on the whole document, then both sides are cut to their lengths (in ids).
    """
    for number, record in read_c4(path):
        statistics.documents += 1
        if isinstance(record, str):
            statistics.excluded[record] += 1
            continue
        sentences = split_sentences(record["text"])
        gaps = select_gap_sentences(sentences, ratio, strategy)
        if not gaps:
            statistics.excluded[TOO_FEW_SENTENCES] += 1
            continue
        ids = tokenizer.encode_batch(sentences)
        chosen = set(gaps)
        sample = make_sample(
            [row for i, row in enumerate(ids) if i not in chosen],
            [ids[i] for i in gaps],
            {"url": record["url"], "gap_sentences": gaps},
            source_length,
            target_length,
            statistics,
        )
        if sample is not None:
            yield number, sample


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Make gap-sentence pre-training shards from files in C4's format "
        "(JSON lines with text and url; .json, .jsonl or .json.gz).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_common_options(parser, source_length=4096, target_length=910)
    parser.add_argument(
        "--ratio", type=float, default=0.2, help="share of a document's sentences to take out"
    )
    parser.add_argument(
        "--strategy", default=STRATEGIES[0], choices=STRATEGIES, help="how sentences are chosen"
    )
    options = parser.parse_args()

    def prepare() -> Job:
        check_lengths(options)
        select_gap_sentences([], options.ratio, options.strategy)  # refuses a bad ratio early
        tokenizer = Tokenizer(options.tokenizer)
        chosen = {
            "ratio": options.ratio,
            "strategy": options.strategy,
            "source_length": options.source_length,
            "target_length": options.target_length,
        }
        return Job(
            output=Path(options.output),
            kind="pretraining",
            split=options.split,
            tokenizer=tokenizer,
            settings={**chosen, "sentence_splitter": SPLITTER},
            inputs=find_inputs(options.input),
            samples=partial(samples, tokenizer=tokenizer, **chosen),
        )

    run(prepare)


if __name__ == "__main__":
    run_command(main)
