"""Pre-training shards: correct samples and counts, deterministic bytes."""

import gzip
import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import webdataset
from jobs import arguments
from made_up_text import c4_lines, tree, write_lines

from pipeline.common.sentences import split_sentences
from pipeline.shards import Dataset
from pipeline.tokenizer import Tokenizer
from preprocessing import pretrain
from preprocessing.gap_sentences import select_gap_sentences


def test_samples_are_the_documents_split_in_two(undisturbed, corpus, tokenizer_path):
    tokenizer = Tokenizer(tokenizer_path)
    texts = {}
    for path in corpus.iterdir():
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for record in map(json.loads, file):
                texts[record["url"]] = record["text"]
    dataset = Dataset(undisturbed)
    assert len(dataset) > 80
    for sample in dataset:
        sentences = split_sentences(texts.pop(sample.metadata["url"]))
        gaps = sample.metadata["gap_sentences"]
        assert gaps == select_gap_sentences(sentences)
        rest = [s for i, s in enumerate(sentences) if i not in gaps]
        # Sentences are encoded one by one; pieces never cross their borders.
        assert sample.source.tolist() == [*tokenizer.encode(" ".join(rest)), 1]
        assert sample.target.tolist() == [
            *tokenizer.encode(" ".join(sentences[i] for i in gaps)),
            1,
        ]
        start = 0
        for end, gap in zip(sample.metadata["target_sentence_ends"], gaps, strict=True):
            assert sample.target[start:end].tolist() == tokenizer.encode(sentences[gap])
            start = end
    assert all(len(split_sentences(text)) < 5 for text in texts.values())  # the excluded ones


def test_manifest_counts_add_up(undisturbed):
    dataset = Dataset(undisturbed)
    counts, lengths = dataset.manifest["counts"], dataset.manifest["lengths"]
    assert counts["documents"] == 120
    assert counts["kept"] == len(dataset)
    assert counts["excluded"].keys() == {"too few sentences"}
    assert counts["kept"] + sum(counts["excluded"].values()) == counts["documents"]
    assert [shard.name for shard in dataset.shards] == [f"c4-0000{i}-00000" for i in range(3)]
    for side in ("source", "target"):
        stored = np.array([len(getattr(sample, side)) for sample in dataset])
        assert counts[f"truncated_{side}s"] == 0
        assert lengths[side]["mean"] == pytest.approx(stored.mean(), abs=0.01)
        assert lengths[side]["max"] == stored.max()
        for name, share in (("median", 0.5), ("p90", 0.9)):
            assert lengths[side][name] == np.quantile(stored, share, method="inverted_cdf")
        index = np.concatenate([dataset.index(k)[f"{side}_length"] for k in range(3)])
        np.testing.assert_array_equal(index, stored)


def test_webdataset_reads_the_same_samples(undisturbed):
    dataset = Dataset(undisturbed)
    tars = [str(undisturbed / f"{shard.name}.tar") for shard in dataset.shards]
    read = list(webdataset.WebDataset(tars, shardshuffle=False).decode())
    assert len(read) == len(dataset) == len({record["__key__"] for record in read})
    for record, sample in zip(read, dataset, strict=True):
        assert record["mp"]["source"] == sample.source.tobytes()
        assert record["mp"]["target"] == sample.target.tobytes()
        assert record["mp"]["url"] == sample.metadata["url"]


def test_truncation_keeps_eos_and_the_selection(
    command, undisturbed, corpus, tokenizer_path, tmp_path
):
    options = arguments(corpus, tokenizer_path, tmp_path / "c4")
    command(pretrain.main, *options, "--source_length", 50, "--target_length", 20)
    cut, whole = Dataset(tmp_path / "c4"), Dataset(undisturbed)
    for short, long in zip(cut, whole, strict=True):
        for side, limit in (("source", 50), ("target", 20)):
            ids, full = getattr(short, side), getattr(long, side)
            assert ids[-1] == 1
            assert len(ids) == min(limit, len(full))
            np.testing.assert_array_equal(ids[:-1], full[: len(ids) - 1])
        assert short.metadata["gap_sentences"] == long.metadata["gap_sentences"]
        ends = short.metadata["target_sentence_ends"]
        assert ends[-1] == len(short.target) - 1
        assert ends[:-1] == long.metadata["target_sentence_ends"][: len(ends) - 1]
    counts = cut.manifest["counts"]
    for side, limit in (("source", 50), ("target", 20)):
        longer = sum(len(getattr(sample, side)) > limit for sample in whole)
        assert counts[f"truncated_{side}s"] == longer > 0
    for side, lengths in cut.manifest["lengths"].items():
        assert lengths.pop("tokens_kept") == sum(len(getattr(sample, side)) for sample in cut)
        assert whole.manifest["lengths"][side].pop("tokens_kept") == lengths["tokens"]
    assert cut.manifest["lengths"] == whole.manifest["lengths"]  # before truncation


def test_bad_records_are_counted_by_reason(command, tokenizer_path, tmp_path):
    good = c4_lines(5, 1)[0]
    text = json.loads(good)["text"]
    lines = [
        good.encode(),
        b"{not json",
        b'["a list"]',
        b"",
        b'{"url": "x"}',
        b'{"text": 3}',
        b'{"text": "  \\n"}',
        b'{"text": "caf\xe9"}',
        b'{"text": "half a pair: \\ud800"}',
        b'{"text": "One. Two."}',
        b"[" * 100_000,
        json.dumps({"text": "\u200b\n" * 6}).encode(),  # six 'sentences' without any id
        json.dumps({"text": text + "\0"}).encode(),
    ]
    (tmp_path / "c4-0.jsonl").write_bytes(b"\n".join(lines))
    command(pretrain.main, *arguments(tmp_path, tokenizer_path, tmp_path / "out"))
    counts = Dataset(tmp_path / "out").manifest["counts"]
    shares = counts.pop("unknown_shares")
    assert shares.pop("up to 1 %") == 2 and set(shares.values()) == {0}
    assert counts == {
        "documents": 12,
        "kept": 2,
        "excluded": {
            "bad encoding": 2,
            "empty": 2,
            "no text": 2,
            "not JSON": 3,
            "too few sentences": 1,
        },
        "truncated_sources": 0,
        "truncated_targets": 0,
        "characters": counts["characters"],
        "unknown_characters": counts["unknown_characters"],
    }


def test_an_empty_file_makes_an_empty_shard(command, tokenizer_path, tmp_path):
    write_lines(tmp_path / "c4-0.jsonl", [])
    write_lines(tmp_path / "c4-1.json.gz", c4_lines(1, 9))
    command(pretrain.main, *arguments(tmp_path, tokenizer_path, tmp_path / "out"))
    dataset = Dataset(tmp_path / "out")
    assert [shard.samples for shard in dataset.shards] == [0, len(dataset)]


def test_refusals(command, corpus, tokenizer_path, tmp_path):
    output = tmp_path / "out"

    def refused(message: str, *options: object) -> None:
        with pytest.raises(ValueError, match=message):
            command(pretrain.main, *options)
        assert not (output / "manifest.json").exists()

    good = arguments(corpus, tokenizer_path, output)
    refused("no tokenizer at", *arguments(corpus, tmp_path / "none", output))
    refused("no file matches --input", *arguments(tmp_path, tokenizer_path, output))
    refused("--source_length is 1, expected at least 2", *good, "--source_length", 1)
    refused("ratio is 1.5", *good, "--ratio", 1.5)
    assert not output.exists()

    write_lines(tmp_path / "empty/c4-0.jsonl", ["", " "])
    refused("hold no documents", *arguments(tmp_path / "empty", tokenizer_path, output))
    output = tmp_path / "out2"
    write_lines(tmp_path / "useless/c4-0.jsonl", ["{}", '{"text": "One."}'])
    refused("no document could be used", *arguments(tmp_path / "useless", tokenizer_path, output))


@pytest.mark.parametrize(("error", "expected"), [(ValueError, 2), (RecursionError, 1)])
def test_an_error_that_stops_a_job_names_file_and_record(
    exit_of, tokenizer_path, tmp_path, monkeypatch, error, expected
):
    def split(text):
        if "unlucky" in text:
            raise error("too bad")
        return text.split(".")

    monkeypatch.setattr("preprocessing.dataset.gap_sentence_samples.split_sentences", split)
    lines = [*c4_lines(0, 9), json.dumps({"text": "unlucky"})]
    path = write_lines(tmp_path / "c4-0.jsonl", lines)
    status, _, said = exit_of(pretrain.main, *arguments(tmp_path, tokenizer_path, tmp_path / "out"))
    assert status == expected
    assert f"{path}, record 10: " in said.splitlines()[-1]


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_corrupt_gzip_is_named_and_never_complete(command, tokenizer_path, tmp_path, damage):
    write_lines(tmp_path / "c4-0.jsonl", c4_lines(0, 9))
    path = write_lines(tmp_path / "c4-1.json.gz", c4_lines(1, 200))
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    output = tmp_path / "out"
    with pytest.raises(ValueError, match=r"c4-1\.json\.gz is corrupt or truncated after record"):
        command(pretrain.main, *arguments(tmp_path, tokenizer_path, output))
    assert not (output / "manifest.json").exists()
    assert (output / "out-00000-00000.tar").exists()  # the good item stays done
    assert not list(output.glob("out-00001*"))


def test_a_restart_makes_only_missing_shards(
    command, undisturbed, corpus, tokenizer_path, tmp_path
):
    output = Path(shutil.copytree(undisturbed, tmp_path / "c4"))
    (output / "manifest.json").unlink()
    (output / ".items/00001.json").unlink()
    (output / "c4-00002-00000.tar").unlink()
    (output / ".c4-00001-00000.tar.node-1.tmp").write_bytes(b"of a killed run")
    untouched = (output / "c4-00000-00000.tar").stat().st_ino
    command(pretrain.main, *arguments(corpus, tokenizer_path, output))
    assert tree(output) == tree(undisturbed)
    assert (output / "c4-00000-00000.tar").stat().st_ino == untouched


def test_other_settings_are_refused(command, undisturbed, corpus, tokenizer_path, tmp_path):
    output = Path(shutil.copytree(undisturbed, tmp_path / "c4"))
    same = arguments(corpus, tokenizer_path, output)
    with pytest.raises(
        ValueError, match=r"ratio was 0\.2, now 0\.5; source_length was 4096, now 8"
    ):
        command(pretrain.main, *same, "--ratio", 0.5, "--source_length", 8)
    changed = Path(shutil.copytree(corpus, tmp_path / "changed"))
    write_lines(changed / "c4-1.json.gz", c4_lines(1, 41))
    with pytest.raises(ValueError, match=r"input 1 was c4-1\.json\.gz, \d+ bytes, \w+, now c4-1"):
        command(pretrain.main, *arguments(changed, tokenizer_path, output))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="already holds a dataset"):
        command(pretrain.main, *arguments(corpus, tokenizer_path, foreign))
    assert tree(output) == tree(undisturbed)


def test_a_mask_token_marks_the_gaps(command, corpus, tokenizer_path, undisturbed, tmp_path):
    command(pretrain.main, *arguments(corpus, tokenizer_path, tmp_path / "c4"), "--mask_share", 1)
    masked, removed = Dataset(tmp_path / "c4"), Dataset(undisturbed)
    mask = Tokenizer(tokenizer_path).sentinel(0)
    assert masked.manifest["settings"]["mask_share"] == 1
    assert len(masked) == len(removed)
    for one, other in zip(masked, removed, strict=True):
        gaps = one.metadata["gap_sentences"]
        assert gaps == other.metadata["gap_sentences"]
        np.testing.assert_array_equal(one.source[one.source != mask], other.source)
        np.testing.assert_array_equal(one.target, other.target)
        ends = [0, *one.metadata["source_sentence_ends"]]
        for gap in gaps:
            assert one.source[ends[gap] : ends[gap + 1]].tolist() == [mask]


def test_source_sentence_ends(undisturbed, tokenizer_path):
    tokenizer = Tokenizer(tokenizer_path)
    for sample in Dataset(undisturbed):
        ends = sample.metadata["source_sentence_ends"]
        assert ends == sorted(ends)
        assert ends[-1] == len(sample.source) - 1
        for start, end in zip([0, *ends], ends, strict=False):
            assert tokenizer.decode(sample.source[start:end]).endswith(".")


def test_random_options_depend_only_on_the_document(command, corpus, tokenizer_path, tmp_path):
    lines = [line for seed in range(2) for line in c4_lines(seed, 40)]
    write_lines(tmp_path / "c4-all.jsonl", lines)
    options = ["--ratio_range", 0.15, 0.45, "--noise", 0.2, "--mask_share", 0.9]
    for folder, name, more in (
        (corpus, "files", []),
        (tmp_path, "blocks", ["--block_size", 3000]),
        (tmp_path, "other", ["--seed", 1]),
    ):
        output = tmp_path / name / "c4"
        command(pretrain.main, *arguments(folder, tokenizer_path, output), *options, *more)
    samples = [
        {sample.metadata["url"]: sample for sample in Dataset(tmp_path / name / "c4")}
        for name in ("files", "blocks", "other")
    ]
    files, blocks, other = samples
    assert blocks.keys() <= files.keys()
    for url, sample in blocks.items():
        np.testing.assert_array_equal(sample.source, files[url].source)
        np.testing.assert_array_equal(sample.target, files[url].target)
    gaps = [
        {url: sample.metadata["gap_sentences"] for url, sample in kind.items()}
        for kind in (blocks, other)
    ]
    assert gaps[0] != gaps[1]


def test_a_phase_of_long_inputs(command, corpus, tokenizer_path, undisturbed, tmp_path):
    options = arguments(corpus, tokenizer_path, tmp_path / "c4")
    command(pretrain.main, *options, "--min_source_length", 300, "--source_length", 200)
    long, every = Dataset(tmp_path / "c4"), Dataset(undisturbed)
    expected = [sample.metadata["url"] for sample in every if len(sample.source) >= 300]
    assert [sample.metadata["url"] for sample in long] == expected
    assert 0 < len(expected) < len(every)
    excluded = long.manifest["counts"]["excluded"]
    assert excluded["source too short"] == len(every) - len(expected)


def test_length_zero_is_no_limit(command, corpus, tokenizer_path, undisturbed, tmp_path):
    options = arguments(corpus, tokenizer_path, tmp_path / "c4")
    command(pretrain.main, *options, "--source_length", 0, "--target_length", 0)
    for one, other in zip(Dataset(tmp_path / "c4"), Dataset(undisturbed), strict=True):
        np.testing.assert_array_equal(one.source, other.source)


def test_histograms_count_every_sample(undisturbed):
    dataset = Dataset(undisturbed)
    for side in ("source", "target"):
        histogram = dataset.manifest["lengths"][side]["histogram"]
        stored = [len(getattr(sample, side)) for sample in dataset]
        edges = [0, *histogram["edges"]]
        expected = [sum(low < length <= high for length in stored) for low, high in pairwise(edges)]
        assert histogram["counts"] == expected
        assert sum(expected) == len(dataset)
