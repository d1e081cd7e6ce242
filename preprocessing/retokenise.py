"""A summarisation dataset once more, with another tokenizer: the same samples in the same order.

`python -m preprocessing.retokenise --data shards/pubmed-train --tokenizer FOLDER --output DIR`,
alone, or on several processes: `mpirun --bind-to none -n N python -m preprocessing.retokenise ...`.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from collections.abc import Iterable, Iterator
from functools import partial

from pipeline.command_line import Parser
from pipeline.huggingface_tokenizer import AnyTokenizer, open_tokenizer
from pipeline.shards import Dataset, Sample
from preprocessing.command_line import HelpFormatter, check_lengths, run_command
from preprocessing.corpora import Entry, Item
from preprocessing.finetune import started
from preprocessing.samples import make_sample
from preprocessing.statistics import Statistics
from preprocessing.workers import Job, run


def read_samples(item: Item, dataset: Dataset) -> Iterator[Entry]:
    """The metadata of each sample of a shard, of which the item is the tar."""
    shard = next(k for k, one in enumerate(dataset.shards) if one.name == item.path.stem)
    for number, row in enumerate(dataset.index(shard), start=1):
        offset, size = int(row["offset"]), int(row["size"])
        yield Entry(number, dataset.read(shard, offset, size).metadata, offset + size)


def samples(
    entries: Iterable[Entry],
    statistics: Statistics,
    *,
    tokenizer: AnyTokenizer,
    lengths: tuple[int, int],
) -> Iterator[tuple[str, Sample]]:
    """(key, sample) of each entry: its stored document and summary, of which a line is a sentence.

    Raises ValueError where the tokenizer leaves nothing of one: without it others would come in its
    place, and the batches of a run would no longer hold the same samples.
    """
    for number, metadata, _ in entries:
        assert not isinstance(metadata, str)
        statistics.documents += 1
        sentences = [line for text in metadata["references"] for line in text.splitlines()]
        sample = make_sample(
            started([tokenizer.encode(metadata["source_text"])], tokenizer),
            started(tokenizer.encode_batch(sentences), tokenizer),
            metadata,
            lengths,
            tokenizer,
            statistics,
        )
        if isinstance(sample, str):
            raise ValueError(
                f"the tokenizer knows nothing of sample {metadata['id']!r}; give one for its script"
            )
        statistics.without_references += not metadata["references"]
        yield f"{number:08d}", sample


def main() -> None:
    """The command line."""
    options = _parser().parse_args()

    def prepare() -> Job:
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
            output=Path(options.output),
            kind="summarisation",
            split=dataset.manifest["split"],
            tokenizer=tokenizer,
            settings={
                **{name: value for name, value in before.items() if name not in NOT_INHERITED},
                "source_length": source_length,
                "target_length": target_length,
                "retokenised": dataset.fingerprint,
            },
            items=[Item(dataset.path / f"{shard.name}.tar") for shard in dataset.shards],
            read=partial(read_samples, dataset=dataset),
            samples=partial(samples, tokenizer=tokenizer, lengths=(source_length, target_length)),
        )

    run(prepare)


NOT_INHERITED = ("deduplicate", "inputs")  # a job states its own


def _parser() -> Parser:
    parser = Parser(
        prog="preprocessing.retokenise",
        description="Make a dataset of the texts that a summarisation dataset keeps, with another "
        "tokenizer: for a baseline, which then trains on the same samples in the same order.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--data", required=True, help="summarisation dataset")
    parser.add_argument(
        "--tokenizer", required=True, help="folder with tokenizer.json, or a SentencePiece model"
    )
    parser.add_argument(
        "--output", required=True, help="dataset folder to fill; its name names the shards"
    )
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}_length",
            type=int,
            help=f"longest {side}, in ids with EOS; 0: never cut; none: as in the dataset",
        )
    return parser


if __name__ == "__main__":
    run_command(main)
