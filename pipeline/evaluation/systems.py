"""The systems that are evaluated: the model and baselines that show what its scores mean."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipeline.common.sentences import split_sentences
from pipeline.distributed.sequence_parallel import sequence_group
from pipeline.distributed.world import World
from pipeline.evaluation.examples import Examples
from pipeline.inference.decode import Summary, generate_batch, load
from pipeline.model.generation import DecodingStrategy

SYSTEMS = ("model", "lead", "lead_words", "permuted")
DEFAULT_SYSTEMS = ("model", "lead", "permuted")
PERMUTED_SEED = 0

System = Callable[[list[int]], list[Summary]]
"""From the indices of a batch of documents to their summaries."""


def model_system(
    checkpoint: Path,
    examples: Examples,
    strategy: DecodingStrategy,
    precision: str,
    world: World,
) -> System:
    """The summaries that the checkpoint generates; a collective of each group of processes."""
    model, tokenizer = load(checkpoint, world.device, sequence_group(world))

    def summarize(batch: list[int]) -> list[Summary]:
        sources = [examples[index].source for index in batch]
        return generate_batch(model, tokenizer, sources, strategy, precision, world.device)

    return summarize


def lead_system(examples: Examples, sentences: int) -> System:
    """The first sentences of each document."""
    return lambda batch: [Summary(lead(examples[index].document, sentences)) for index in batch]


def lead_words_system(examples: Examples) -> System:
    """The first words of each document, as many as the references have on average."""
    words = examples.mean_reference_words()
    return lambda batch: [Summary(lead_words(examples[index].document, words)) for index in batch]


def permuted_system(model_summaries: Sequence[Summary]) -> System:
    """The model's summary of another document.

    Nothing is generated: a summary is a function of the source, or a sample of one, so the
    model's summaries of all documents are already known.
    """
    donors = derangement(len(model_summaries))
    return lambda batch: [model_summaries[donors[index]] for index in batch]


def lead(document: str, sentences: int) -> str:
    """The first sentences of a document."""
    return " ".join(split_sentences(document)[:sentences])


def lead_words(document: str, words: int) -> str:
    """The first words of a document: a lead of fixed length, however long its sentences."""
    return " ".join(document.split(maxsplit=words)[:words])


def derangement(count: int, seed: int = PERMUTED_SEED) -> list[int]:
    """For each of `count` documents another one: a seeded cycle through all of them.

    Raises ValueError for fewer than two documents.
    """
    if count < 2:
        raise ValueError("permuted needs at least 2 documents; leave it out of --systems")
    order = np.random.default_rng(seed).permutation(count)
    donors = np.empty(count, dtype=np.int64)
    donors[order] = np.roll(order, 1)
    return donors.tolist()
