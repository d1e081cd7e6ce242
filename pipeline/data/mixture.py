"""The training datasets of a run, mixed by weight."""

import os
from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

from pipeline.common.batch_spans import Spans
from pipeline.config import DataConfig
from pipeline.data.order import GlobalOrder
from pipeline.data.stored_dataset import open_dataset, staging_folder


class Mixture:
    """`data.train` and the folders of `data.mixture`, of one tokenizer, with their weights.

    `versions` are the fingerprints of the versions to read, as Dataset takes them.

    Raises ValueError as Dataset does, and if two tokenizers differ, a dataset is listed twice, or
    `data.stage_dir` cannot be written to.
    """

    def __init__(self, data: DataConfig, versions: Sequence[str] = ()) -> None:
        folders = {data.train: 1.0, **data.mixture}
        if data.train in data.mixture:
            raise ValueError(f"data.mixture also names data.train, {data.train}; leave it out")
        if data.stage_dir:
            _make(Path(data.stage_dir))
        wanted = versions if len(versions) == len(folders) else [None] * len(folders)
        self.datasets = [
            open_dataset(folder, data.stage_dir, version)
            for folder, version in zip(folders, wanted, strict=True)
        ]
        self.weights = list(folders.values())
        first = self.datasets[0]
        self.tokenizer: dict[str, Any] = first.manifest["tokenizer"]
        self.tokenizer_path = first.tokenizer_path
        for number, dataset in enumerate(self.datasets[1:], start=1):
            found = dataset.manifest["tokenizer"]["sha256"]
            if found != self.tokenizer["sha256"]:
                raise ValueError(
                    f"data.mixture {dataset.path} was tokenised with {found}, data.train "
                    f"{first.path} with {self.tokenizer['sha256']}; prepare both with one tokenizer"
                )
            for other in self.datasets[:number]:
                if other.fingerprint == dataset.fingerprint:
                    raise ValueError(
                        f"data.mixture {dataset.path} is the same dataset as {other.path}; leave "
                        "it out and give the other a higher weight"
                    )
        if data.stage_dir:
            for dataset in self.datasets:
                dataset.copies = staging_folder(Path(data.stage_dir), dataset)

    @property
    def fingerprint(self) -> str:
        """Identifies the samples: the dataset's fingerprint, or all of them with their weights."""
        if len(self.datasets) == 1:
            return self.datasets[0].fingerprint
        return " + ".join(
            f"{weight} x {dataset.fingerprint}"
            for weight, dataset in zip(self.weights, self.datasets, strict=True)
        )

    def __len__(self) -> int:
        """Samples of an epoch: those drawn during one pass over data.train."""
        return ceil(len(self.datasets[0]) * sum(Fraction(str(weight)) for weight in self.weights))

    def order(self, batch_size: int, seed: int, skipped: Spans = ()) -> GlobalOrder:
        """The global order over all datasets, without the `skipped` batches."""
        sizes = [[shard.samples for shard in dataset.shards] for dataset in self.datasets]
        return GlobalOrder(sizes, batch_size, seed, self.weights, skipped)


def _make(folder: Path) -> None:
    """Make the stage folder. Raises ValueError where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"data.stage_dir {folder} cannot be created: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"data.stage_dir {folder} cannot be written to; give another folder")
