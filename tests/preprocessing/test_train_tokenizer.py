"""Training and importing a tokenizer."""

import gzip
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece
from made_up_text import c4_lines, write_lines
from sentencepiece import sentencepiece_model_pb2

from pipeline.tokenizer import Tokenizer
from preprocessing import tokenizer as tokenizer_command
from preprocessing.dataset.tokenizer_training import LONGEST, sample_lines

SHARED = Path(__file__).resolve().parents[2] / "../shared/data"
T5 = SHARED / "tokenizers/t5_spiece.model"


def test_a_trained_model_has_t5s_layout_and_normaliser(command, corpus, tmp_path):
    output = tmp_path / "new/m.model"
    options = ["--input", corpus / "c4-*", "--vocab_size", 70]
    command(tokenizer_command.main, "train", *options, "--output", output)
    tokenizer = Tokenizer(output)
    assert tokenizer.vocab_size == 170
    processor = sentencepiece.SentencePieceProcessor(model_file=str(output))
    assert processor.bos_id() == -1
    assert [processor.id_to_piece(i) for i in range(3)] == ["<pad>", "</s>", "<unk>"]
    assert tokenizer.decode(tokenizer.encode("The  old\nﬁsh")) == "The old fish"
    again = tmp_path / "again.model"
    command(tokenizer_command.main, "train", *options, "--output", again)
    assert again.read_bytes() == output.read_bytes()
    assert [path.name for path in output.parent.iterdir()] == ["m.model"]


def test_the_sample_is_fixed_and_covers_the_text(tmp_path):
    lines = [json.dumps({"text": f"line {i}\n\nagain {i}"}) for i in range(1000)]
    source = write_lines(tmp_path / "x.jsonl", lines)
    drawn = sample_lines([source], 200)
    assert drawn == sample_lines([source], 200)
    assert len(set(drawn)) == 200
    numbers = [int(line.split()[1]) for line in drawn]
    assert numbers == sorted(numbers)
    assert 400 < sum(numbers) / len(numbers) < 600
    assert len(sample_lines([source], 5000)) == 2000


@pytest.mark.parametrize(
    "text",
    [
        "é" * 10_000,
        " ".join(f"Sentence {i} stands here." for i in range(500)),
        " ".join(f"wörd{i}" for i in range(2000)),
        "川のそばの水車。" * 900,
        f"{'x' * 5000} and a short end. Then another sentence.",
    ],
)
def test_long_lines_are_cut_and_all_read(text, tmp_path):
    source = write_lines(tmp_path / "x.jsonl", [json.dumps({"text": text})])
    lines = sample_lines([source], 99)
    assert all(0 < len(line.encode()) <= LONGEST for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert len(lines) <= 2 + 4 * len(text.encode()) / LONGEST


def test_sentences_stay_whole_where_a_long_line_is_cut(tmp_path):
    text = " ".join(f"Sentence {i} stands here." for i in range(500))
    source = write_lines(tmp_path / "x.jsonl", [json.dumps({"text": text})])
    assert all(line.endswith(" stands here.") for line in sample_lines([source], 99))


def test_import_copies_a_valid_model(command, tokenizer_path, tmp_path):
    output = tmp_path / "copy.model"
    command(tokenizer_command.main, "import", "--input", tokenizer_path, "--output", output)
    command(tokenizer_command.main, "import", "--input", tokenizer_path, "--output", output)
    assert output.read_bytes() == tokenizer_path.read_bytes()
    (tmp_path / "bad.model").write_text("no model")
    with pytest.raises(ValueError, match="is not a SentencePiece model"):
        command(
            tokenizer_command.main, "import", "--input", tmp_path / "bad.model", "--output", output
        )
    assert output.read_bytes() == tokenizer_path.read_bytes()


def trained(normaliser: str, symbols: Sequence[str] = ()) -> bytes:
    """A model made by SentencePiece with T5's ids."""
    model, rng = io.BytesIO(), random.Random(0)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(rng.choices(("mill", "river", "old"), k=6)) for _ in range(99)),
        model_writer=model, vocab_size=24 + len(symbols), pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        normalization_rule_name=normaliser, remove_extra_whitespaces=normaliser != "identity",
        user_defined_symbols=list(symbols), hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def test_an_import_says_what_its_normaliser_does_with_spaces(command, tmp_path, capsys):
    for normaliser, said in (("nmt_nfkc", "become one space"), ("identity", "keeps newlines")):
        (tmp_path / "x.model").write_bytes(trained(normaliser))
        output = tmp_path / f"{normaliser}.model"
        command(
            tokenizer_command.main, "import", "--input", tmp_path / "x.model", "--output", output
        )
        assert said in capsys.readouterr().out


def with_pieces_at_the_end(model: bytes, names: Sequence[str]) -> bytes:
    """The model with further user-defined pieces, as some conversions of T5 have them."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for name in names:
        proto.pieces.add(piece=name, score=0.0, type=proto.SentencePiece.USER_DEFINED)
    return proto.SerializeToString()


def test_sentinels_that_a_model_has_are_not_doubled(tmp_path):
    plain = trained("nmt_nfkc")
    names = [f"<extra_id_{k}>" for k in range(99, -1, -1)]
    (tmp_path / "plain.model").write_bytes(plain)
    expected = Tokenizer(tmp_path / "plain.model")
    for prefix in ("", "\u2581"):  # T5's and mT5's
        path = tmp_path / "with.model"
        path.write_bytes(with_pieces_at_the_end(plain, [prefix + name for name in names]))
        tokenizer = Tokenizer(path)
        assert (tokenizer.vocab_size, tokenizer.pieces) == (expected.vocab_size, expected.pieces)
        assert tokenizer.sentinel(0) == expected.sentinel(0)
        assert tokenizer.encode("old mill") == expected.encode("old mill")
        assert max(tokenizer.encode("old <extra_id_0> mill")) < tokenizer.pieces
        assert tokenizer.decode([tokenizer.sentinel(0), *tokenizer.encode("old")]) == "old"
    for wrong in (names[::-1], names[:50], [*names, "more"]):
        (tmp_path / "wrong.model").write_bytes(with_pieces_at_the_end(plain, wrong))
        with pytest.raises(ValueError, match="<extra_id_99> to <extra_id_0> as its last"):
            Tokenizer(tmp_path / "wrong.model")


def test_too_little_text_is_refused(command, tmp_path):
    output = tmp_path / "m.model"
    few = write_lines(tmp_path / "few.jsonl", c4_lines(0, 2))
    with pytest.raises(
        ValueError, match=r"too few for 8000 pieces; .* --vocab_size of at most \d+$"
    ):
        command(
            tokenizer_command.main,
            *("train", "--input", few, "--output", output, "--vocab_size", 8000),
        )
    with pytest.raises(ValueError, match=r"--vocab_size is 5, but .* need at least \d+$"):
        command(
            tokenizer_command.main,
            *("train", "--input", few, "--output", output, "--vocab_size", 5),
        )
    none = write_lines(tmp_path / "none.jsonl", ["{}"])
    with pytest.raises(ValueError, match=r"hold no text .*field text"):
        command(tokenizer_command.main, "train", "--input", none, "--output", output)
    assert not output.exists()


def test_another_model_is_not_overwritten(command, corpus, tokenizer_path, tmp_path, capsys):
    output = tmp_path / "m.model"
    output.write_bytes(b"precious")
    train = ["train", "--input", corpus / "c4-*", "--vocab_size", 70, "--output", output]
    for arguments in (train, ["import", "--input", tokenizer_path, "--output", output]):
        with pytest.raises(ValueError, match="already exists and is not this model"):
            command(tokenizer_command.main, *arguments)
    assert output.read_bytes() == b"precious"
    output.unlink()
    for _ in range(2):  # the same bytes again are fine
        command(tokenizer_command.main, *train)
    assert "newlines and runs of spaces become one space" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["train", None])
def test_help_states_the_newline_policy(command, capsys, name):
    with pytest.raises(SystemExit):
        command(tokenizer_command.main, *([name] if name else []), "--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "newlines and runs of spaces become one space" in said


def test_bad_lines_of_a_gzipped_input_are_skipped(command, tmp_path):
    good = [json.dumps({"text": f"the old mill {i} stands by a river"}) for i in range(200)]
    output, same = tmp_path / "m.model", tmp_path / "same.model"
    options = ["--vocab_size", 40, "--output"]
    path = write_lines(tmp_path / "good.json.gz", good)
    command(tokenizer_command.main, "train", "--input", path, *options, same)
    content = (
        "\n".join(good[:9]).encode() + b"\n{bad\n\xff\xfe\n[]\n" + "\n".join(good[9:]).encode()
    )
    path = tmp_path / "bad.json.gz"
    path.write_bytes(gzip.compress(content))
    command(tokenizer_command.main, "train", "--input", path, *options, output)
    assert output.read_bytes() == same.read_bytes()
    path.write_bytes(gzip.compress(content)[:-20])
    with pytest.raises(ValueError, match="corrupt or truncated"):
        command(tokenizer_command.main, "train", "--input", path, *options, output)


@pytest.mark.skipif(not T5.is_file(), reason="no shared data with T5's tokenizer")
def test_t5s_ids_are_hugging_faces(tmp_path):
    """Whole texts of C4, and the sentinels.

    Markup in a text (</s>, <extra_id_0>) is plain text here, special ids in Hugging Face.
    """
    transformers = pytest.importorskip("transformers")
    (tmp_path / "spiece.model").write_bytes(T5.read_bytes())
    reference = transformers.T5Tokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer(T5)
    assert tokenizer.vocab_size == len(reference) == 32_100
    for k in (0, 1, 99):
        sentinel = reference.convert_tokens_to_ids(f"<extra_id_{k}>")
        assert tokenizer.sentinel(k) == sentinel == 32_099 - k
    for special, ours in (("<pad>", 0), ("</s>", 1), ("<unk>", 2)):
        assert reference.convert_tokens_to_ids(special) == ours
    texts = [
        json.loads(line)["text"]
        for path in sorted((SHARED / "c4").glob("c4-train.*.json.gz"))
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    assert len(texts) == 700
    texts += ["", "a\n\nb  c\t\u00a0d", "ﬁne ½ …", "{x} \u200b ~ 中文"]
    expected = reference(texts, add_special_tokens=False, verbose=False)["input_ids"]
    assert tokenizer.encode_batch(texts) == expected
    assert [tokenizer.encode(text) for text in texts] == expected
    assert tokenizer.eos_id not in tokenizer.encode("a </s> b")
    assert max(tokenizer.encode("<extra_id_0>")) < 32_000
