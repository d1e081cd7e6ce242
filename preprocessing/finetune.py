"""A summarisation set to shards: `python -m preprocessing.finetune --dataset NAME --input PATH`.

With several processes: `mpirun --bind-to none -n N python -m preprocessing.finetune ...`.
"""

if not __package__:
    import _start  # noqa: F401
import argparse
from functools import partial
from pathlib import Path

from pipeline.common.command_line import Parser, shown
from pipeline.common.sentences import SPLITTER
from pipeline.tokenizer import open_tokenizer
from preprocessing.dataset.samples import check_lengths, check_unknown_share
from preprocessing.dataset.summarisation_samples import samples
from preprocessing.jobs.dry_run import check
from preprocessing.jobs.job import EVALUATION_TEXTS, Job, earlier_inputs
from preprocessing.jobs.options import HelpFormatter, add_common_options, output_from, run_command
from preprocessing.jobs.run import run
from preprocessing.readers.archives import left_out
from preprocessing.readers.entries import Folder
from preprocessing.readers.evaluation_texts import (
    add_decontamination_options,
    evaluation_texts_from,
)
from preprocessing.readers.fields import add_field_options, described, fields_from
from preprocessing.readers.inputs import Listing, find_items
from preprocessing.readers.splits import split_name
from preprocessing.readers.summarisation_sets import FORMATS, SETS, read_set

BLOCK_SIZE = 2**30  # bytes of an uncompressed file of JSON lines per shard
PAIR_SHARE = 0.1
"""A copy of which every seventh word was edited has that share of its n-grams left."""


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args()
    prepare = partial(_job, options)
    if options.dry_run:
        check(prepare, options.finish)
    else:
        run(prepare, options.finish, options.report)


def _job(options: argparse.Namespace, listing: Listing | None) -> Job:
    """Raises ValueError on options that do not fit the set and on inputs that cannot be read."""
    known = SETS[options.dataset]
    if options.format is not None and options.format not in known.formats:
        raise ValueError(
            f"--format is {options.format}, expected one of the formats of {options.dataset}: "
            f"{', '.join(known.formats)}"
        )
    if options.root is not None and not Path(options.root).is_dir():
        raise ValueError(
            f"--root {options.root} is not a folder; give the one that holds the texts"
        )
    fields = fields_from(options, "document")
    if fields and options.dataset != "jsonl":
        raise ValueError(f"--fields is for --dataset jsonl, not {options.dataset}; omit it")
    source_length, target_length = (
        default if chosen is None else chosen
        for chosen, default in (
            (options.source_length, known.source_length),
            (options.target_length, known.target_length),
        )
    )
    check_lengths(source_length, target_length)
    check_unknown_share(options.max_unknown_share)
    tokenizer = open_tokenizer(options.tokenizer)
    places = output_from(options)
    if listing is None:
        items = find_items(options.input, BLOCK_SIZE)
        listing = Listing.of(items).after(*earlier_inputs(places["output"]))
    folders = {
        f"folder {shown(item.path.name)}": f"{item.size} bytes"
        for item in listing.items
        if isinstance(item, Folder)
    }
    split = split_name(options.split)
    texts = evaluation_texts_from(options, places["output"] / EVALUATION_TEXTS, PAIR_SHARE)
    return Job(
        **places,
        kind="summarisation",
        split=options.split,
        tokenizer=tokenizer,
        settings={
            "dataset": options.dataset,
            "format": options.format or "by keys",
            "source_length": source_length,
            "target_length": target_length,
            "max_unknown_share": options.max_unknown_share,
            "sentence_splitter": SPLITTER,
            **folders,
            **described(fields),
            **(texts.describe() if texts else {}),
        },
        listing=listing,
        read=partial(
            read_set,
            dataset=options.dataset,
            split=options.split,
            form=options.format,
            root=options.root and Path(options.root),
            fields=fields,
        ),
        samples=partial(
            samples,
            tokenizer=tokenizer,
            lengths=(source_length, target_length),
            withheld=split == "test",
            max_unknown_share=options.max_unknown_share,
        ),
        screen=texts.screen if texts else None,
        evaluation_texts=texts,
        left_out=partial(left_out, split=options.split),
        expected_samples=known.pairs.get(split) if known.pairs else None,
    )


def _parser() -> Parser:
    parser = Parser(
        prog="preprocessing.finetune",
        description="Make fine-tuning shards from a summarisation set: JSON lines, JSON documents, "
        "CSV, TSV or Parquet; each also compressed (gzip, bzip2, xz, zstd) or in a .zip or .tar; "
        "a folder of these. docs/data.md lists where to download each set.",
        formatter_class=HelpFormatter,
    )
    add_common_options(parser, None, None)
    parser.add_argument(
        "--dataset",
        required=True,
        choices=SETS,
        help="decides the accepted record formats and the default lengths (the paper's); jsonl: "
        "id, document, summary (a text or a list of alternative texts)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="record format, where the keys do not identify it"
    )
    parser.add_argument(
        "--root", help="folder of the paths in BookSum's alignments; default: the input's folder"
    )
    add_field_options(parser, "document", ("document", "summary", "id"))
    add_decontamination_options(parser, PAIR_SHARE)
    return parser


if __name__ == "__main__":
    run_command(main)
