"""A retokenised dataset: the same samples in the same order, from the stored texts."""

import pytest
import tokenizers
from small_systems import PEGASUS_IDS, retokenised

from pipeline.data.order import GlobalOrder
from pipeline.manifest import write_manifest
from pipeline.shards import Dataset
from pipeline.tokenizer import open_tokenizer


def order(dataset):
    return GlobalOrder([[shard.samples for shard in dataset.shards]], 8, seed=3)


@pytest.mark.parametrize("kind", ["byte pairs", "many words"])
def test_batches_hold_the_same_samples(data, kind):
    ours, theirs = Dataset(data["ours"].train), Dataset(data[kind].train)
    assert [shard.samples for shard in theirs.shards] == [17, 0, 9]
    for step in range(10):  # three epochs
        drawn = [
            [dataset[ref.sample].metadata["id"] for ref in order(dataset).samples(step)]
            for dataset in (ours, theirs)
        ]
        assert drawn[0] == drawn[1]
    for before, after in zip(ours, theirs, strict=True):
        for name in ("id", "references", "source_text"):
            assert after.metadata[name] == before.metadata[name]


@pytest.mark.parametrize("kind", ["byte pairs", "many words"])
def test_ids_are_the_tokenizers_own(data, kind):
    reference = tokenizers.Tokenizer.from_file(str(data[kind].tokenizer / "tokenizer.json"))
    tokenizer = open_tokenizer(data[kind].tokenizer)
    for sample in Dataset(data[kind].train):
        text, (summary,) = sample.metadata["source_text"], sample.metadata["references"]
        assert sample.source.tolist() == reference.encode(text).ids
        assert sample.target.tolist() == reference.encode(summary).ids
        assert sample.metadata["target_sentence_ends"] == [len(sample.target) - 1]
        assert tokenizer.decode(sample.target).replace(" .", ".").lower() == summary.lower()


def test_ids_beyond_16_bits(data):
    dataset = Dataset(data["many words"].train)
    assert dataset.id_dtype == "uint32"
    assert dataset.manifest["tokenizer"]["vocab_size"] == PEGASUS_IDS
    assert min(int(sample.source[:-1].min()) for sample in dataset) > 2**16


def test_lengths_can_be_changed(data, tmp_path):
    cut = retokenised(
        data["ours"].train, data["byte pairs"].tokenizer, tmp_path / "cut", "--source_length", 9
    )
    whole = Dataset(data["byte pairs"].train)
    assert cut[0].source.tolist() == [*whole[0].source[:8].tolist(), 2]
    assert cut[0].target.tolist() == whole[0].target.tolist()
    assert cut.manifest["settings"]["retokenised"] == Dataset(data["ours"].train).fingerprint


def test_datasets_without_texts_are_refused(data, tmp_path):
    manifest = {**Dataset(data["ours"].train).manifest, "kind": "pretraining"}
    (tmp_path / "c4").mkdir()
    tokenizer = data["ours"].tokenizer / "tokenizer.model"
    (tmp_path / "c4" / "tokenizer.model").write_bytes(tokenizer.read_bytes())
    write_manifest(tmp_path / "c4", manifest)
    with pytest.raises(ValueError, match="do not keep their texts"):
        retokenised(tmp_path / "c4", data["byte pairs"].tokenizer, tmp_path / "out")


def test_a_text_that_becomes_empty_is_an_error(data, tmp_path):
    """It cannot be dropped: later samples would move."""
    folder = tmp_path / "blind"
    folder.mkdir()
    model = tokenizers.Tokenizer(tokenizers.models.BPE({"</s>": 0}, []))
    model.add_special_tokens(["</s>"])
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    model.save(str(folder / "tokenizer.json"))
    with pytest.raises(ValueError, match="has no ids for sample '0-0'"):
        retokenised(data["ours"].train, folder, tmp_path / "out")
