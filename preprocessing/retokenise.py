"""A summarisation dataset with another tokenizer: the same samples in the same order.

`python -m preprocessing.retokenise --data shards/pubmed-train --tokenizer FOLDER --output DIR`.
With several processes: `mpirun --bind-to none -n N python -m preprocessing.retokenise ...`.
"""

if not __package__:
    import _start  # noqa: F401
import argparse
from functools import partial

from pipeline.common.command_line import Parser, add_checks
from pipeline.shards import Dataset
from pipeline.tokenizer import open_tokenizer
from preprocessing.dataset.retokenised_samples import read_samples, samples
from preprocessing.dataset.samples import check_lengths
from preprocessing.jobs.dry_run import check
from preprocessing.jobs.job import Job
from preprocessing.jobs.options import HelpFormatter, add_output_options, output_from, run_command
from preprocessing.jobs.run import run
from preprocessing.readers.entries import Item
from preprocessing.readers.inputs import Listing

NOT_INHERITED = (
    "deduplicate",
    "inputs",
    "input_versions",
)  # settings that each job records for itself


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args()
    if options.check_arguments:
        open_tokenizer(options.tokenizer)
        print("ready: valid arguments")
        return
    prepare = partial(_job, options)
    if options.dry_run:
        check(prepare)
    else:
        run(prepare)


def _job(options: argparse.Namespace, listing: Listing | None) -> Job:
    """Raises ValueError on a dataset without texts and on lengths out of range."""
    dataset = Dataset(options.data)
    if dataset.manifest["kind"] != "summarisation":
        raise ValueError(
            f"--data {options.data} holds {dataset.manifest['kind']} samples, which do not "
            "keep their texts; give a summarisation set (`python -m preprocessing.finetune`)"
        )
    before = dataset.manifest["settings"]
    source_length, target_length = (
        before.get(name, 0) if chosen is None else chosen
        for name, chosen in (
            ("source_length", options.source_length),
            ("target_length", options.target_length),
        )
    )
    check_lengths(source_length, target_length)
    tokenizer = open_tokenizer(options.tokenizer)
    return Job(
        **output_from(options),
        kind="summarisation",
        split=dataset.manifest["split"],
        tokenizer=tokenizer,
        settings={
            **{name: value for name, value in before.items() if name not in NOT_INHERITED},
            "source_length": source_length,
            "target_length": target_length,
            "retokenised": dataset.fingerprint,
        },
        listing=listing
        or Listing.of(Item(dataset.path / f"{shard.name}.tar") for shard in dataset.shards),
        read=partial(read_samples, dataset=dataset),
        samples=partial(samples, tokenizer=tokenizer, lengths=(source_length, target_length)),
    )


def _parser() -> Parser:
    parser = Parser(
        prog="preprocessing.retokenise",
        description="Encode the texts of a summarisation dataset with another tokenizer, for a "
        "baseline that trains on the same samples in the same order.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--data", required=True, help="summarisation dataset")
    parser.add_argument(
        "--tokenizer", required=True, help="folder with tokenizer.json, or a SentencePiece model"
    )
    add_output_options(parser)
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}_length",
            type=int,
            help=f"maximum {side} length in ids, EOS included; 0: no limit; default: the dataset's",
        )
    add_checks(parser)
    return parser


if __name__ == "__main__":
    run_command(main)
