"""C4 to gap-sentence shards: `python -m preprocessing.pretrain --input GLOB --tokenizer MODEL ...`.

With several processes: `mpirun --bind-to none -n N python -m preprocessing.pretrain ...`. Several
such jobs may fill one folder at once.
"""

if not __package__:
    import _start  # noqa: F401
import argparse
from dataclasses import fields
from functools import partial

from pipeline.common.command_line import Parser, count_from
from pipeline.tokenizer import Tokenizer
from preprocessing.dataset.gap_sentence_samples import GapSampleSettings, samples
from preprocessing.gap_sentences import METRICS, STRATEGIES, GapSentences
from preprocessing.jobs.dry_run import check
from preprocessing.jobs.job import EVALUATION_TEXTS, ITEMS, Job, earlier_inputs
from preprocessing.jobs.options import HelpFormatter, add_common_options, output_from, run_command
from preprocessing.jobs.run import run
from preprocessing.readers.archives import left_out
from preprocessing.readers.corpora import read_c4
from preprocessing.readers.evaluation_texts import evaluation_texts_from
from preprocessing.readers.fields import add_field_options, described, fields_from
from preprocessing.readers.filters import add_filter_options, filters_from
from preprocessing.readers.gzip_blocks import split_gzip
from preprocessing.readers.inputs import Listing, find_inputs, split_items
from preprocessing.readers.minhash import MinHash

BLOCK_SIZE = 256 * 2**20


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args()
    prepare = partial(_job, options)
    if options.dry_run:
        check(prepare, options.finish)
    else:
        run(prepare, options.finish, options.report)


def _job(options: argparse.Namespace, listing: Listing | None) -> Job:
    """Raises ValueError on options out of range and on inputs that cannot be read."""
    settings = _settings(options)
    places = output_from(options)
    evaluation_texts = evaluation_texts_from(options, places["output"] / EVALUATION_TEXTS, 0.0)
    filters, filter_settings = filters_from(options, evaluation_texts)
    fields = fields_from(options, "text")
    near = options.near_duplicates
    tokenizer = Tokenizer(options.tokenizer)
    blocks = {"block_size": options.block_size} if options.block_size != BLOCK_SIZE else {}
    if options.split_gzip:
        blocks["split_gzip"] = True
    if listing is None:
        items = split_items(find_inputs(options.input), options.block_size)
        if options.split_gzip:
            folder = places["output"] / ITEMS / "gzip"
            items = split_gzip(items, options.block_size, folder, may_write=not options.dry_run)
        listing = Listing.of(items).after(*earlier_inputs(places["output"]))
    return Job(
        **places,
        kind="pretraining",
        split=options.split,
        tokenizer=tokenizer,
        settings={
            **settings.describe(),
            **filter_settings,
            **blocks,
            **described(fields),
        },
        listing=listing,
        read=partial(read_c4, split=options.split, fields=fields),
        screen=filters.screen,
        samples=partial(samples, tokenizer=tokenizer, settings=settings),
        left_out=partial(left_out, split=options.split),
        deduplicate=options.deduplicate,
        evaluation_texts=evaluation_texts,
        near_duplicates=None if near is None else MinHash.at(near),
    )


def _parser() -> Parser:
    parser = Parser(
        prog="preprocessing.pretrain",
        description="Make gap-sentence pre-training shards from files in C4's format "
        "(JSON lines with text and url), or of other names and forms: JSON documents, CSV, TSV, "
        "Parquet; each also compressed or in a .zip or .tar.",
        formatter_class=HelpFormatter,
    )
    defaults = GapSampleSettings(GapSentences())
    add_common_options(parser, defaults.source_length, defaults.target_length)
    group = parser.add_argument_group("gap sentences")
    gaps = defaults.gap_sentences
    group.add_argument(
        "--strategy", default=gaps.strategy, choices=STRATEGIES, help="selection strategy"
    )
    group.add_argument("--metric", default=gaps.metric, choices=METRICS, help="ROUGE-1 score")
    group.add_argument(
        "--ratio", type=float, default=gaps.ratio, help="share of the sentences to select"
    )
    group.add_argument(
        "--ratio_range",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="draw each document's ratio from this range (PEGASUS: 0.15 0.45)",
    )
    group.add_argument("--stemming", action="store_true", help="compare Porter stems")
    group.add_argument("--stopwords", action="store_true", help="ignore stopwords")
    group.add_argument(
        "--noise",
        type=float,
        default=gaps.noise,
        help="relative noise on each score (PEGASUS: 0.2)",
    )
    group.add_argument(
        "--minimum_sentences",
        type=int,
        default=gaps.minimum_sentences,
        help="1: select at least one sentence of a short document (PEGASUS)",
    )
    group.add_argument(
        "--mask_share",
        type=float,
        default=defaults.mask_share,
        help="share of the gap sentences that a mask token (sentinel 0) replaces in the source, "
        "the others stay (PEGASUS and LongT5: 0.9); 0: remove all, without a mask token",
    )
    group.add_argument("--seed", type=int, default=defaults.seed, help="random seed")
    group = parser.add_argument_group("documents")
    group.add_argument(
        "--min_source_length",
        type=int,
        default=defaults.min_source_length,
        help="exclude shorter sources (ids before truncation), for a phase of long inputs",
    )
    group.add_argument(
        "--deduplicate",
        action="store_true",
        help="keep only the first of the texts that pass the filters and whose lines are equal "
        "but for spaces at their ends",
    )
    group.add_argument(
        "--near_duplicates",
        type=float,
        metavar="SIMILARITY",
        help="keep only the first of the texts that pass the filters and have this Jaccard "
        "similarity of 5-word shingles (published: 0.8), found by MinHash",
    )
    group.add_argument(
        "--block_size",
        type=count_from(1),
        default=BLOCK_SIZE,
        help="bytes of an uncompressed file per shard",
    )
    group.add_argument(
        "--split_gzip",
        action="store_true",
        help="split .gz files of JSON lines of more than --block_size bytes as if they were "
        "uncompressed; each is read once before",
    )
    add_field_options(group, "text", ("text", "url"))
    add_filter_options(parser)
    return parser


def _settings(options: argparse.Namespace) -> GapSampleSettings:
    """Raises ValueError on options out of range."""
    chosen = {field.name: getattr(options, field.name) for field in fields(GapSentences)}
    if chosen["ratio_range"] is not None:
        chosen["ratio_range"] = tuple(chosen["ratio_range"])
    names = [field.name for field in fields(GapSampleSettings) if field.name != "gap_sentences"]
    others = {name: getattr(options, name) for name in names}
    return GapSampleSettings(GapSentences(**chosen), **others)


if __name__ == "__main__":
    run_command(main)
