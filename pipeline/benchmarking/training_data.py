"""A dataset with the lengths of recorded micro-batches, and the losses that training on it begins
with.

Imports what reads and writes shards: only where DeepSpeed is installed.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pipeline.benchmarking.micro_batches import FIRST_ID, Shape
from pipeline.common.paths import ROOT
from pipeline.config import RunConfig
from pipeline.data.batches import Batches
from pipeline.data.collate import MicroBatch
from pipeline.data.mixture import Mixture
from pipeline.manifest import write_manifest
from pipeline.model import Locost
from pipeline.shards import Sample, file_sha256, id_dtype_for, write_shard
from pipeline.training.initial_model import starting_model

TOKENIZER = ROOT / "tests" / "fixtures" / "earlier_run" / "dataset" / "tokenizer.model"
"""Any: a dataset must hold one, and training reads none of it."""
END = 1
ROWS = 4
"""Whose loss a CPU computes."""


class FirstLosses(NamedTuple):
    """Mean losses a target token of the initial weights."""

    update: float
    """Of the first update, in bf16 on the device."""
    rows: float
    """Of its ROWS shortest rows, likewise."""
    rows_on_cpu: float
    """The same in fp32 on the CPU."""


def write(folder: Path, shapes: Sequence[Shape], vocab_size: int, copies: int) -> None:
    """A dataset of seeded random ids with the rows' lengths.

    Each copy of the rows is one token shorter than the one before it, so that updates differ.
    """
    folder.mkdir(parents=True)
    shutil.copy(TOKENIZER, folder / "tokenizer.model")
    lengths = np.array([row for shape in shapes for row in shape.rows])
    lengths = np.concatenate([np.maximum(2, lengths - copy) for copy in range(copies)])
    random, dtype = np.random.default_rng(0), id_dtype_for(vocab_size)

    def ids(length: int) -> np.ndarray:
        return np.append(random.integers(FIRST_ID, vocab_size, length - 1), END)

    samples = (
        (f"{number:06d}", Sample(ids(source), ids(target)))
        for number, (source, target) in enumerate(lengths.tolist())
    )
    shard = write_shard(folder / "random-00000-00000", samples, dtype)
    sides = zip(("source", "target"), lengths.T, strict=True)
    write_manifest(folder, {
        "format_version": 1, "kind": "pretraining", "name": "random", "split": "train",
        "tokenizer": {
            "file": "tokenizer.model", "sha256": file_sha256(folder / "tokenizer.model"),
            "vocab_size": vocab_size,
        },
        "id_dtype": dtype, "settings": {}, "shards": [shard],
        "counts": {"documents": len(lengths), "kept": len(lengths), "excluded": {}},
        "lengths": {side: {"histogram": histogram(values)} for side, values in sides},
    })  # fmt: skip


def histogram(lengths: np.ndarray) -> dict[str, list[int]]:
    """Numbers of lengths up to each power of two, as preprocessing writes them."""
    bins = np.ceil(np.log2(lengths)).astype(int)
    counts = np.bincount(bins).tolist()
    return {"edges": [2**k for k in range(len(counts))], "counts": counts}


@torch.no_grad()
def first_losses(config: RunConfig, device: torch.device) -> FirstLosses:
    """Those of a run of one process."""
    mixture = Mixture(config.data)
    model = starting_model(config, mixture, None)
    assert isinstance(model, Locost)
    batch = Batches(
        mixture.datasets, mixture.order(config.train.batch_size, config.train.seed), 0, 1,
        config.train.accumulation, config.data.source_length, config.data.target_length,
    ).step(0)  # fmt: skip
    rows = shortest(batch.micro_batches[-1])
    rows_on_cpu = mean_loss(model, [rows], torch.device("cpu"), bf16=False)
    model.to(device)
    return FirstLosses(
        mean_loss(model, batch.micro_batches, device, bf16=True),
        mean_loss(model, [rows], device, bf16=True),
        rows_on_cpu,
    )


def shortest(batch: MicroBatch) -> MicroBatch:
    """The ROWS rows of the shortest sources, without columns that are padding in all of them."""
    rows = batch.attention_mask.sum(1).argsort()[:ROWS]
    ids, mask, labels = batch.input_ids[rows], batch.attention_mask[rows], batch.labels[rows]
    source, target = int(mask.sum(1).max()), int((labels >= 0).sum(1).max())
    return MicroBatch(ids[:, :source], mask[:, :source], labels[:, :target])


def mean_loss(
    model: Locost, batches: Sequence[MicroBatch], device: torch.device, bf16: bool
) -> float:
    """The loss of all target tokens of the batches, divided by their number."""
    total, tokens = 0.0, 0
    for one in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            output = model(
                one.input_ids.to(device), one.attention_mask.to(device), one.labels.to(device),
                loss_reduction="sum", loss_only=True,
            )  # fmt: skip
        total += output.loss.item()
        tokens += int((one.labels >= 0).sum())
    return total / tokens
