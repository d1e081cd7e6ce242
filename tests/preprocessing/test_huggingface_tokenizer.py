"""Shards with a Hugging Face tokenizer: SentencePiece's ids, the model's own start and end ids."""

import gzip
import json
import sys
from pathlib import Path

import pytest
from made_up_text import write_lines

from pipeline.shards import Dataset
from pipeline.tokenizer import HuggingFaceTokenizer, Tokenizer, open_tokenizer
from preprocessing import finetune

DATA = Path(__file__).resolve().parents[2] / "../shared/data"
RECORD = {"id": "a", "document": "The mill is old. Herons fish.", "summary": "Old. Mill."}


@pytest.fixture(scope="module")
def bart(tmp_path_factory) -> Path:
    """A folder like BART's: byte pairs, texts between <s> (0) and </s> (2)."""
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    tokenizers = pytest.importorskip("tokenizers")
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    model.train_from_iterator(
        [RECORD["document"]] * 9, tokenizers.trainers.BpeTrainer(special_tokens=specials)
    )
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    folder = tmp_path_factory.mktemp("bart")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=model,
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), specials, strict=True)),
    ).save_pretrained(folder)
    return folder


def shards(command, tokenizer, tmp_path, *more):
    source = write_lines(tmp_path / "x.jsonl", [json.dumps(RECORD)] * 3)
    options = ["--dataset", "jsonl", "--input", source, "--tokenizer", tokenizer]
    command(finetune.main, *options, "--output", tmp_path / "set", *more)
    return Dataset(tmp_path / "set")


def test_ids_are_sentencepieces_on_t5(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    model = DATA / "tokenizers" / "t5_spiece.model"
    if not model.is_file():
        pytest.skip("the shared folder with T5's tokenizer is not available")
    (tmp_path / "spiece.model").write_bytes(model.read_bytes())
    transformers.T5Tokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "t5")
    ours, theirs = Tokenizer(model), HuggingFaceTokenizer(tmp_path / "t5")
    assert (theirs.vocab_size, theirs.eos_id, theirs.prefix_ids) == (ours.vocab_size, 1, ())
    with gzip.open(DATA / "c4" / "c4-train.00000-of-00002.json.gz") as file:
        texts = [json.loads(line)["text"] for line in file]
    assert theirs.encode_batch(texts) == ours.encode_batch(texts)


def test_shards_begin_and_end_as_the_model_expects(command, bart, tmp_path):
    dataset = shards(command, bart, tmp_path)
    tokenizer = HuggingFaceTokenizer(bart)
    assert (tokenizer.eos_id, tokenizer.prefix_ids) == (2, (0,))
    tokenizers = pytest.importorskip("tokenizers")
    reference = tokenizers.Tokenizer.from_file(str(bart / "tokenizer.json"))
    expected = reference.encode(RECORD["document"]).ids
    assert dataset[0].source.tolist() == expected
    assert dataset[0].source[[0, -1]].tolist() == dataset[0].target[[0, -1]].tolist() == [0, 2]
    assert dataset[0].metadata["target_sentence_ends"][-1] == len(dataset[0].target) - 1
    cut = shards(command, bart, tmp_path / "cut", "--target_length", 3)
    assert cut[0].target.tolist() == [*dataset[0].target[:2].tolist(), 2]


def test_the_tokenizer_travels_and_another_is_refused(command, bart, tmp_path):
    dataset = shards(command, bart, tmp_path)
    assert dataset.manifest["tokenizer"]["file"] == "tokenizer.json"
    assert dataset.tokenizer_path.read_bytes() == (bart / "tokenizer.json").read_bytes()
    dataset.tokenizer_path.write_text("{}")
    with pytest.raises(
        ValueError, match=r"sha256 [0-9a-f]{64}, the shards were made with [0-9a-f]"
    ):
        Dataset(dataset.path)


def test_special_tokens_in_a_text_end_nothing(bart):
    tokenizer = HuggingFaceTokenizer(bart)
    assert tokenizer.encode("mill</s> fish<s>") == tokenizer.encode_batch(["mill fish"])[0]
    assert tokenizer.encode_batch([]) == []


def test_the_path_decides_the_tokenizer(bart, tokenizer_path, tmp_path):
    assert isinstance(open_tokenizer(bart), HuggingFaceTokenizer)
    assert isinstance(open_tokenizer(tokenizer_path), Tokenizer)
    assert isinstance(open_tokenizer(tokenizer_path.parent), Tokenizer)
    with pytest.raises(ValueError, match="no tokenizer at"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        open_tokenizer(tmp_path)


def test_a_tokenizer_without_eos_is_refused(bart, tmp_path):
    tokenizer = json.loads((bart / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="does not end texts"):
        HuggingFaceTokenizer(tmp_path)


def test_without_the_package_the_install_is_named(bart, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install -r requirements-extras\.txt"):
        HuggingFaceTokenizer(bart)
