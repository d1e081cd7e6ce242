"""The tiny datasets, and once more with other tokenizers."""

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is an extra")

from small_systems import retokenised, save_byte_pairs, save_many_words

from pipeline.shards import Dataset


@dataclass(frozen=True)
class Data:
    """A training set, a validation set, and the folder of their tokenizer."""

    train: Path
    validation: Path
    tokenizer: Path


@pytest.fixture(scope="session")
def data(dataset_folder, validation_folder, tokenizer_path, tmp_path_factory) -> dict[str, Data]:
    """By tokenizer: `ours` (SentencePiece), `byte pairs`, `many words` (96,103 ids)."""
    folder = tmp_path_factory.mktemp("retokenised")
    text = " ".join(sample.metadata["source_text"] for sample in Dataset(dataset_folder))
    words = sorted({word.strip(".").lower() for word in text.split()})
    found = {"ours": Data(dataset_folder, validation_folder, tokenizer_path.parent)}
    for name, tokenizer in (
        ("byte pairs", save_byte_pairs(folder / "bpe", text)),
        ("many words", save_many_words(folder / "words", [*words, "."])),
    ):
        sets = [folder / f"{tokenizer.name}-{split}" for split in ("train", "validation")]
        for before, after in zip((dataset_folder, validation_folder), sets, strict=True):
            retokenised(before, tokenizer, after)
        found[name] = Data(*sets, tokenizer)
    return found
