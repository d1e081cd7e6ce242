"""From token ids to summaries: batches, truncation, checkpoints."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.inference.decode import (
    encode_source,
    generate_summaries,
    length_batches,
    load,
    model_folder,
)
from pipeline.model import Locost, load_model, save_model
from pipeline.model.generation import DecodingStrategy
from pipeline.shards import Dataset
from pipeline.tokenizer import Tokenizer

CPU = torch.device("cpu")


def one_by_one(model, tokenizer, sources, **strategy):
    """Each source alone, unpadded, cut at EOS."""
    texts = []
    for source in sources:
        ids = model.generate(torch.tensor([source.astype(np.int64).tolist()]), **strategy)[
            0
        ].tolist()
        assert ids.pop(0) == 0
        texts.append(tokenizer.decode(ids[: ids.index(1)] if 1 in ids else ids))
    return texts


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"top_p": 0.9, "seed": 2}])
def test_batched_summaries_are_those_of_each_source_alone_in_order(checkpoint, dataset_folder, how):
    model, tokenizer = load(checkpoint, CPU)
    dataset = Dataset(dataset_folder)
    sources = [dataset[i].source for i in range(len(dataset))]
    expected = one_by_one(model, tokenizer, sources, max_new_tokens=8, **how)
    assert len(set(expected)) > 5, "a model that ignores its source would prove nothing"
    strategy = DecodingStrategy(max_new_tokens=8, **how)
    for batch_size in (7, 26):
        found = generate_summaries(model, tokenizer, sources, strategy, batch_size, "fp32", CPU)
        assert found == expected


def test_bf16_autocast_runs_and_the_training_mode_is_left_as_it_was(checkpoint, dataset_folder):
    model, tokenizer = load(checkpoint, CPU)
    dataset = Dataset(dataset_folder)
    model.train()
    strategy = DecodingStrategy(max_new_tokens=5)
    texts = generate_summaries(model, tokenizer, [dataset[0].source], strategy, 4, "bf16", CPU)
    assert len(texts) == 1
    assert model.training
    assert generate_summaries(model, tokenizer, [], strategy, 4, "fp32", CPU) == []


def test_batches_hold_every_index_once_longest_first():
    lengths = [3, 9, 1, 9, 4, 4, 2]
    batches = length_batches(lengths, 3)
    assert batches == [[1, 3, 4], [5, 0, 6], [2]]
    assert length_batches([], 3) == []


def test_encode_source_cuts_before_eos(tokenizer_path):
    tokenizer = Tokenizer(tokenizer_path)
    text = "the river runs past an old stone mill"
    whole = tokenizer.encode(text)
    assert encode_source(tokenizer, text).tolist() == [*whole, 1]
    assert encode_source(tokenizer, text, 4).tolist() == [*whole[:3], 1]
    assert encode_source(tokenizer, text, 10_000).tolist() == [*whole, 1]


def test_a_run_folder_names_the_checkpoint_to_give(tmp_path):
    (tmp_path / "last").mkdir()
    with pytest.raises(ValueError, match=f"no config.json there .*; give {tmp_path}/last$"):
        model_folder(tmp_path)
    (tmp_path / "best").mkdir()
    with pytest.raises(ValueError, match=f"; give {tmp_path}/best$"):
        model_folder(tmp_path)


def test_a_model_is_found_in_a_checkpoint_or_a_model_folder(checkpoint, tmp_path):
    assert model_folder(checkpoint) == model_folder(checkpoint / "model") == checkpoint / "model"
    with pytest.raises(ValueError, match="not a model"):
        model_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"lacks model\.safetensors and tokenizer\.model"):
        model_folder(tmp_path)


def test_a_tokenizer_of_another_size_than_the_model_is_refused(checkpoint, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint / "model", folder)
    config = load_model(folder).config
    larger = replace(config, vocab_size=config.vocab_size + 1)
    save_model(Locost(larger), folder)
    with pytest.raises(ValueError, match="restore the tokenizer"):
        load(folder, CPU)
