"""Training and importing a tokenizer."""

import json

import pytest
import sentencepiece
from made_up_text import c4_lines, write_lines

from pipeline.tokenizer import Tokenizer
from preprocessing import tokenizer as tokenizer_command
from preprocessing.tokenizer import sample_lines


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
