"""From the samples of a summarisation dataset to the same samples with another tokenizer."""

from collections.abc import Iterable, Iterator

from pipeline.shards import Dataset, Sample
from pipeline.tokenizer import AnyTokenizer
from preprocessing.dataset.samples import at_record
from preprocessing.dataset.statistics import Statistics
from preprocessing.dataset.summarisation_samples import pair_sample
from preprocessing.readers.entries import Entry, Item


def read_samples(item: Item, dataset: Dataset) -> Iterator[Entry]:
    """The metadata of each sample of a shard; the item is the shard's tar."""
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
    """(key, sample) of each entry: its stored document and summary, one sentence a line.

    Raises ValueError where a text has no ids: to leave the sample out would shift the samples after
    it, and a run's batches would no longer hold the same samples.
    """
    for number, metadata, _ in entries:
        assert not isinstance(metadata, str)
        statistics.documents += 1
        with at_record(number):
            sentences = [line for text in metadata["references"] for line in text.splitlines()]
            source = tokenizer.encode(metadata["source_text"])
            sample = pair_sample(source, sentences, metadata, lengths, tokenizer, statistics)
            if isinstance(sample, str):
                raise ValueError(
                    f"the tokenizer has no ids for sample {metadata['id']!r}; give one that covers "
                    "its script"
                )
            statistics.without_references += not metadata["references"]
            yield f"{number:08d}", sample
