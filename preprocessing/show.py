"""Print or verify a dataset or one of its shards: `python -m preprocessing.show DIR|SHARD ...`."""

if not __package__:
    import _start  # noqa: F401
import argparse
import random
import sys
from pathlib import Path

from pipeline.common.command_line import Parser, close_pipe
from pipeline.shards import Dataset
from preprocessing.dataset.as_text import (
    find_sample,
    histograms,
    manifest_table,
    open_part,
    printable,
    sample_text,
)
from preprocessing.dataset.verify import faults
from preprocessing.jobs.options import USER_ERROR, run_command


def main() -> None:
    """Run the command line."""
    parser = Parser(
        prog="preprocessing.show",
        description="Print a dataset's manifest and lengths, or one sample; verify all of it, or "
        "write a page about it.",
    )
    parser.add_argument("dataset", type=Path, help="dataset folder, or one of its .tar files")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--sample", type=int, metavar="K", help="print sample K (from 0) of the folder or the .tar"
    )
    choice.add_argument(
        "--find",
        metavar="ID",
        help="print the first sample with this id or URL; reads all before it",
    )
    choice.add_argument("--random", action="store_true", help="print a sample drawn at random")
    choice.add_argument(
        "--report",
        action="store_true",
        help="write report/report.html in the folder: exclusions, lengths, tokens, languages",
    )
    choice.add_argument(
        "--verify", action="store_true", help="check checksums, indexes and every sample"
    )
    options = parser.parse_args()
    dataset, shards = open_part(options.dataset)
    if options.verify:
        _verify(dataset, shards)
        return
    if options.report:
        from preprocessing.dataset.report import FOLDER, write_report  # matplotlib is slow

        print(write_report(dataset.manifest, dataset.path / FOLDER))
        return
    index = _chosen(options, dataset, shards)
    if index is None:
        lines = (*manifest_table(dataset), *histograms(dataset.manifest))
    else:
        lines = (*sample_text(dataset, index, shards),)
    try:
        print(*map(printable, lines), sep="\n", flush=True)
    except BrokenPipeError:
        close_pipe()


def _chosen(options: argparse.Namespace, dataset: Dataset, shards: range) -> int | None:
    """The number of the sample to print, within the shards; None for the manifest."""
    if options.find is not None:
        return find_sample(dataset, options.find, shards)
    samples = sum(dataset.shards[shard].samples for shard in shards)
    if options.random and samples:
        return random.randrange(samples)
    return 0 if options.random else options.sample  # a folder without samples has no 0 either


def _verify(dataset: Dataset, shards: range) -> None:
    found = list(faults(dataset, shards))
    for fault in found:
        print(f"error: {fault}", file=sys.stderr)
    if found:
        sys.exit(USER_ERROR)
    samples = sum(dataset.shards[shard].samples for shard in shards)
    print(
        f"{dataset.path}: {samples} samples in {len(shards)} shards, every checksum, index row "
        "and sample is correct"
    )


if __name__ == "__main__":
    run_command(main)
