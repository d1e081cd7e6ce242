"""The loss with each tenth of the source exchanged for the same tenth of another document's.

Where a tenth is exchanged and the loss does not rise, the model did not use it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from pipeline.baselines.model import Baseline
from pipeline.baselines.registry import Model
from pipeline.common.progress import Progress
from pipeline.data.collate import collate
from pipeline.distributed.world import World
from pipeline.evaluation.examples import Examples
from pipeline.inference.decode import length_batches
from pipeline.model.locost import IGNORED, target_loss
from pipeline.scoring.predictions import Record
from pipeline.scoring.source_use import NO_REFERENCE, PARTS, TOO_SHORT, Losses
from pipeline.shards import Sample

DocumentLosses = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], list[tuple[float, int]]]
"""From a batch's sources and targets, each (L,) and (T,) ids ending with EOS, to each document's
loss in nats, summed over target tokens, and their number."""


@dataclass(frozen=True)
class Exchange:
    """The documents that are measured, in batches, and by index whose parts each of them gets."""

    batches: list[list[int]]
    partners: dict[int, int]
    left_out: dict[int, str]
    """By index: why a document is not measured."""
    prefix: int
    """Ids before a source's text."""
    longest: int
    """Ids of the longest source."""


def plan_exchange(examples: Examples, batch_size: int) -> Exchange:
    """Which documents are measured, and with whose parts; a function of the data alone.

    Raises ValueError where they have no two different texts of at least PARTS tokens.
    """
    prefix = len(examples.tokenizer.prefix_ids)
    texts: dict[int, tuple[int, bytes]] = {}
    left_out: dict[int, str] = {}
    for index in range(len(examples)):
        example = examples[index]
        if not example.references:
            left_out[index] = NO_REFERENCE
        elif len(example.source) - prefix - 1 < PARTS:
            left_out[index] = TOO_SHORT
        else:
            texts[index] = len(example.source), hashlib.sha256(example.source.tobytes()).digest()
    others = partners(texts)
    measured = sorted(texts)
    lengths = [texts[index][0] for index in measured]
    batches = length_batches(lengths, batch_size)
    return Exchange(
        [[measured[place] for place in batch] for batch in batches],
        others,
        left_out,
        prefix,
        max(lengths),
    )


def partners(texts: Mapping[int, tuple[int, bytes]]) -> dict[int, int]:
    """For each document, of given length and digest, the next in the order of length (the one
    before for the last), passing over those with the same text.

    Raises ValueError where there is no other text.
    """
    ordered = sorted(texts, key=lambda index: (texts[index], index))
    equals = [list(same) for _, same in groupby(ordered, key=texts.__getitem__)]
    if len(equals) < 2:
        raise ValueError(
            "--source_use_by_position exchanges parts of sources, for which it needs at least 2 "
            f"different documents of {PARTS} tokens or more with a reference, and there "
            f"{'is 1' if equals else 'is none'}; give more, or leave it out"
        )
    others = [*equals[1:], equals[-2]]
    return {index: other[0] for same, other in zip(equals, others, strict=True) for index in same}


def tenth(length: int, part: int, prefix: int = 0) -> slice:
    """Where part `part` (from 0) of a source of `length` ids lies: one of PARTS of nearly equal
    size, of what is between the `prefix` first ids and the last, EOS."""
    text = length - prefix - 1
    return slice(prefix + part * text // PARTS, prefix + (part + 1) * text // PARTS)


def exchanged(source: np.ndarray, other: np.ndarray, part: int, prefix: int = 0) -> np.ndarray:
    """The source (L,) with its part `part` replaced by that of `other` (M,), cut or repeated to
    the same number of tokens."""
    place = tenth(len(source), part, prefix)
    changed = source.copy()
    changed[place] = np.resize(other[tenth(len(other), part, prefix)], place.stop - place.start)
    return changed


def model_losses(model: Model, precision: str, device: torch.device) -> DocumentLosses:
    """The losses of a model; sources and targets are cut to its positions, if it has some."""
    limits = model.limits if isinstance(model, Baseline) else (None, None)
    source_length, target_length = (limit or 0 for limit in limits)

    @torch.no_grad()
    def losses(
        sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> list[tuple[float, int]]:
        samples = [Sample(*pair) for pair in zip(sources, targets, strict=True)]
        batch = collate(samples, source_length, target_length)
        labels = batch.labels.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(
                batch.input_ids.to(device), batch.attention_mask.to(device), labels
            ).logits
        # Row by row: the logits exist once more, in fp32, for one document at a time.
        rows = [
            target_loss(*row, "sum") for row in zip(logits.split(1), labels.split(1), strict=True)
        ]
        tokens = (batch.labels != IGNORED).sum(dim=1).tolist()
        return list(zip(torch.stack(rows).tolist(), tokens, strict=True))

    return losses


def complete_losses(
    store: Losses, examples: Examples, exchange: Exchange, losses: DocumentLosses, world: World
) -> None:
    """Measure what the store lacks, each group of processes its share of the batches; join them."""
    done = {record["index"] for record in store.read()}
    world.barrier()  # every process has read before one writes
    writes = world.sequence_rank == 0  # for its group
    if writes:
        store.repair(world.data_rank)
    missing = [batch for batch in exchange.batches if not done.issuperset(batch)]
    share = missing[world.data_rank :: world.data_size]
    bar = None
    if world.is_main:
        left_out = ({"index": i, "left_out": why} for i, why in exchange.left_out.items())
        store.append([record for record in left_out if record["index"] not in done], 0)
        bar = Progress("Source use by position", sum(map(len, share)), "documents")
    for batch in share:
        records = batch_records(batch, examples, exchange, losses)
        if writes:
            missed = [record for record in records if record["index"] not in done]
            store.append(missed, world.data_rank)
        if bar:
            bar.update(len(batch))
    world.barrier()
    if bar:
        bar.close()
        store.finish(len(examples))
    world.barrier()


def batch_records(
    batch: Sequence[int], examples: Examples, exchange: Exchange, losses: DocumentLosses
) -> list[Record]:
    """The records of a batch of documents: 1 + PARTS passes."""
    own = [examples[index] for index in batch]
    others = [examples[exchange.partners[index]].source for index in batch]
    pairs = [(one.source, other) for one, other in zip(own, others, strict=True)]
    sources = [
        [one.source for one in own],
        *([exchanged(*pair, part, exchange.prefix) for pair in pairs] for part in range(PARTS)),
    ]
    targets = [one.target for one in own]
    found = zip(*(losses(some, targets) for some in sources), strict=True)
    return [
        {"index": index, "tokens": passes[0][1], "losses": [loss for loss, _ in passes]}
        for index, passes in zip(batch, found, strict=True)
    ]
