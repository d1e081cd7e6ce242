"""Training and importing a tokenizer."""

import gzip
import json
from pathlib import Path

import pytest
import sentencepiece
from made_up_text import c4_lines, write_lines

from pipeline.tokenizer import Tokenizer
from preprocessing import tokenizer as tokenizer_command
from preprocessing.tokenizer import sample_lines

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


def test_long_lines_are_cut_not_lost(tmp_path):
    source = write_lines(tmp_path / "x.jsonl", [json.dumps({"text": "é" * 10_000})])
    assert sample_lines([source], 9) == ["é" * 2096]


def test_import_copies_a_model_that_fits(command, tokenizer_path, tmp_path):
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


def test_too_little_text_is_refused(command, tmp_path):
    output = tmp_path / "m.model"
    few = write_lines(tmp_path / "few.jsonl", c4_lines(0, 2))
    with pytest.raises(ValueError, match="cannot train 8000 pieces"):
        command(
            tokenizer_command.main,
            *("train", "--input", few, "--output", output, "--vocab_size", 8000),
        )
    none = write_lines(tmp_path / "none.jsonl", ["{}"])
    with pytest.raises(ValueError, match="hold no text"):
        command(tokenizer_command.main, "train", "--input", none, "--output", output)
    assert not output.exists()


def test_another_model_is_not_overwritten(command, corpus, tokenizer_path, tmp_path, capsys):
    output = tmp_path / "m.model"
    output.write_bytes(b"precious")
    train = ["train", "--input", corpus / "c4-*", "--vocab_size", 70, "--output", output]
    for arguments in (train, ["import", "--input", tokenizer_path, "--output", output]):
        with pytest.raises(ValueError, match="already holds something else"):
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


def test_bad_lines_of_a_gzipped_input_are_passed_over(command, tmp_path):
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
    with pytest.raises(ValueError, match="corrupt or cut short"):
        command(tokenizer_command.main, "train", "--input", path, *options, output)


@pytest.mark.skipif(not T5.is_file(), reason="no shared data with T5's tokenizer")
def test_t5s_ids_are_hugging_faces(tmp_path):
    """Whole texts of C4, and the sentinels.

    Markup in a text (</s>, <extra_id_0>) is text for us, special ids for Hugging Face.
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
