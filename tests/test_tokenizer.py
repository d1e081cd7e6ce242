"""The tokenizer: T5's id layout, round trips, refusals."""

import hashlib
import io
import random
from pathlib import Path

import pytest
import sentencepiece

from pipeline.tokenizer import HuggingFaceTokenizer, Tokenizer

T5 = Path(__file__).resolve().parents[1] / "../shared/data/tokenizers/t5_spiece.model"
needs_t5 = pytest.mark.skipif(not T5.is_file(), reason="T5's model is not beside the repository")


@needs_t5
def test_t5_layout():
    tokenizer = Tokenizer(T5)
    assert tokenizer.vocab_size == 32_100
    assert (tokenizer.sentinel(0), tokenizer.sentinel(99)) == (32_099, 32_000)
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2)
    assert tokenizer.sha256 == hashlib.sha256(T5.read_bytes()).hexdigest()
    # "Hello world." in T5's vocabulary, as every T5 tokenizer gives it, without EOS.
    assert tokenizer.encode("Hello world.") == [8774, 296, 5]
    assert tokenizer.encode("Hi there  \n\n  you\tx") == tokenizer.encode("Hi there you x")


def test_folder_and_file_are_the_same(dataset_folder, tokenizer_path):
    by_folder, by_file = Tokenizer(dataset_folder), Tokenizer(tokenizer_path)
    assert by_folder.path == dataset_folder / "tokenizer.model"
    assert by_folder.sha256 == by_file.sha256
    assert by_file.vocab_size == 64 + 100


def test_round_trip_and_batches(tokenizer_path):
    tokenizer = Tokenizer(tokenizer_path)
    text = "the river runs past an old stone mill"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("") == []
    assert tokenizer.encode_batch([text, "", "mill"]) == [
        tokenizer.encode(text),
        [],
        tokenizer.encode("mill"),
    ]


def test_decode_drops_special_ids_and_sentinels(tokenizer_path):
    tokenizer = Tokenizer(tokenizer_path)
    ids = tokenizer.encode("old stone mill")
    noisy = [0, tokenizer.sentinel(0), *ids, 2, 1, 0, tokenizer.sentinel(99)]
    assert tokenizer.decode(noisy) == "old stone mill"
    assert tokenizer.decode([]) == ""
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"id {wrong} is outside"):
            tokenizer.decode([wrong])


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer at"):
        Tokenizer(tmp_path / "none.model")
    with pytest.raises(ValueError, match="no tokenizer at"):
        Tokenizer(tmp_path)
    for content in (b"", b"not a model\n" * 50, bytes(range(256))):
        (tmp_path / "x.model").write_bytes(content)
        with pytest.raises(ValueError, match="is not a SentencePiece model"):
            Tokenizer(tmp_path / "x.model")


def test_another_id_layout_is_refused(tmp_path):
    rng = random.Random(0)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # SentencePiece's own layout: unk 0, bos 1, eos 2
        sentence_iterator=iter(
            ["".join(rng.choices("abcde ", k=30)).strip() or "a" for _ in range(200)]
        ),
        model_writer=model,
        vocab_size=20,
        minloglevel=2,
    )
    (tmp_path / "x.model").write_bytes(model.getvalue())
    with pytest.raises(ValueError, match=r"ids \(-1, 2, 0\), expected \(0, 1, 2\)"):
        Tokenizer(tmp_path / "x.model")


def test_unknown_characters_are_counted_in_their_runs(tokenizer_path):
    tokenizer = Tokenizer(tokenizer_path)
    known = "old stone mill "
    for text, unknown in (
        (known, 0),
        (known + "中文字" + known, 3),
        ("中 文\n字", 3),
        ("中" * 500, 500),
    ):
        assert tokenizer.unknown_characters(text, tokenizer.encode(text)) == unknown
    assert tokenizer.encode("中" * 500)[-1:] == tokenizer.encode("中")[-1:] == [2]


@pytest.mark.parametrize("name", ["unigram", "bytes"])
def test_unknown_characters_of_a_hugging_face_tokenizer(name, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    end = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 1)]
    )
    if name == "unigram":
        pieces = [("<unk>", 0.0), ("</s>", 0.0), ("mill", -1.0), (" ", -1.0)]
        made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0))
    else:
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {piece: i for i, piece in enumerate(["<pad>", "</s>", *alphabet])}
        made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["</s>"])
    made.post_processor = end
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HuggingFaceTokenizer(tmp_path)
    text = "mill 中文字 mill"
    expected = 3 if name == "unigram" else 0  # bytes spell everything
    assert tokenizer.unknown_characters(text, tokenizer.encode(text)) == expected
