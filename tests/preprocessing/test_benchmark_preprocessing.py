"""The benchmark of preprocessing measures the real flow; times are not asserted."""

import gzip
import json

import pytest

from pipeline import benchmark
from pipeline.benchmarking import preprocessing
from pipeline.shards import Dataset


@pytest.fixture
def c4(tmp_path):
    texts = [
        f"The mill {i} is old. It has a wheel. We saw it. It is big. Go there." for i in range(9)
    ]
    lines = [json.dumps({"text": text, "url": ""}) for text in [*texts, "Too short.", "A b. C d."]]
    path = tmp_path / "c4.json.gz"
    path.write_bytes(gzip.compress("".join(line + "\n" for line in [*lines, "not JSON"]).encode()))
    return path


def test_stages_of_preprocessing(c4, tokenizer_path, tmp_path, capsys):
    arguments = ["--input", str(c4), "--tokenizer", str(tokenizer_path), "--output", str(tmp_path)]
    assert benchmark.main(["preprocessing", *arguments]) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "preprocessing.json").read_text())
    assert (found["documents"], found["kept"]) == (12, 9)
    each = found["microseconds"]
    assert set(each) == {*preprocessing.STAGES, preprocessing.FLOW, preprocessing.BASELINE}
    assert found["ratio"] == pytest.approx(each["whole flow"] / each["SentencePiece alone"])
    # 364,868,892 documents (notes on C4 en), 3.6e9 microseconds an hour.
    assert found["c4_en_core_hours"] == pytest.approx(each["whole flow"] * 364_868_892 / 3.6e9)
    assert all(name in printed for name in each)
    assert benchmark.main(["preprocessing", *arguments, "--documents", "4"]) == 0
    assert json.loads((tmp_path / "preprocessing.json").read_text())["documents"] == 4


def test_unusable_input_is_one_line(tokenizer_path, tmp_path, capsys):
    empty = tmp_path / "empty.json"
    empty.write_text("{}\n")
    options = ["--tokenizer", str(tokenizer_path), "--output", str(tmp_path)]
    for path, said in ((empty, "hold no documents"), (tmp_path / "none", "no file matches")):
        with pytest.raises(SystemExit, match="2"):
            benchmark.main(["preprocessing", "--input", str(path), *options])
        assert said in capsys.readouterr().err


def test_the_flow_is_that_of_the_command(c4, tokenizer_path, tmp_path, monkeypatch, command):
    """The timed flow makes the same shard as the command."""
    from preprocessing import pretrain

    written = {}
    original = preprocessing.write_shard

    def keep(path, samples, id_dtype):
        samples = list(samples)
        written.setdefault("samples", samples)
        return original(path, samples, id_dtype)

    monkeypatch.setattr(preprocessing, "write_shard", keep)
    preprocessing.measure([str(c4)], tokenizer_path, None)
    options = ["--input", c4, "--tokenizer", tokenizer_path, "--output", tmp_path / "set"]
    command(pretrain.main, *options)
    dataset = Dataset(tmp_path / "set")
    assert len(dataset) == len(written["samples"])
    for ours, (_, sample) in zip(dataset, written["samples"], strict=True):
        assert ours.source.tolist() == sample.source.tolist()
        assert ours.metadata == sample.metadata
