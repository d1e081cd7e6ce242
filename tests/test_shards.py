"""Shards: what is written is read back, by us and by WebDataset; damage is named."""

import io
import json
import pickle
import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import webdataset

from pipeline import shards
from pipeline.common.tar_writer import TarWriter
from pipeline.shards import Dataset, Sample, decode_sample, encode_sample, write_shard


def some_samples(count: int, top: int = 2**16) -> list[tuple[str, Sample]]:
    rng = np.random.default_rng(count)
    return [
        (
            f"{i:07d}",
            Sample(
                rng.integers(0, top, rng.integers(1, 900)),
                rng.integers(0, top, rng.integers(1, 90)),
                {"url": f"https://example.org/{i}", "gap_sentences": [i, i + 1]},
            ),
        )
        for i in range(count)
    ]


@pytest.fixture
def folder(dataset_folder, tmp_path) -> Path:
    """A copy of the tiny dataset (17, 0 and 9 samples), to be damaged."""
    return Path(shutil.copytree(dataset_folder, tmp_path / "tiny"))


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(("dtype", "top"), [("uint16", 2**16), ("uint32", 250_000)])
def test_webdataset_reads_what_was_written(tmp_path, dtype, top):
    samples = some_samples(40, top)
    write_shard(tmp_path / "x-00000-00000", samples, dtype)
    read = list(
        webdataset.WebDataset(str(tmp_path / "x-00000-00000.tar"), shardshuffle=False).decode(
            only=["mp"]
        )
    )
    assert [record["__key__"] for record in read] == [key for key, _ in samples]
    for record, (_, sample) in zip(read, samples, strict=True):
        for side in ("source", "target"):
            ids = np.frombuffer(record["mp"][side], f"<u{np.dtype(dtype).itemsize}")
            np.testing.assert_array_equal(ids, getattr(sample, side))
        assert record["mp"]["url"] == sample.metadata["url"]


class Planted:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple:
        return exec, ("raise SystemExit('planted code ran')",)


def test_the_documented_reader_runs_no_code_of_a_member(tmp_path):
    path = str(tmp_path / "planted.tar")
    with webdataset.TarWriter(path, encoder=False) as writer:
        payload = encode_sample(some_samples(1)[0][1])
        writer.write({"__key__": "a", "mp": payload, "pyd": pickle.dumps(Planted())})
    reader = webdataset.WebDataset(path, shardshuffle=False)
    assert [*next(iter(reader.decode(only=["mp"])))["mp"]][:2] == ["source", "target"]
    with pytest.raises(SystemExit, match="planted code ran"):
        next(iter(webdataset.WebDataset(path, shardshuffle=False).decode()))


def test_the_bytes_are_those_of_webdatasets_writer(tmp_path):
    members = [(f"{'k' * n}{n}", bytes(n)) for n in (0, 1, 96, 97, 98, 511, 512, 513, 70_000)]
    members.append(("né", b"1"))
    ours, theirs = io.BytesIO(), io.BytesIO()
    with TarWriter(ours) as writer:
        begins = [writer.add(f"{key}.mp", content) for key, content in members]
    with webdataset.TarWriter(theirs, mtime=0, encoder=False) as writer:
        for key, content in members:
            writer.write({"__key__": key, "mp": content})
    made = ours.getvalue()
    assert made == theirs.getvalue()
    for begin, (_, content) in zip(begins, members, strict=True):
        assert made[begin : begin + len(content)] == content


def test_index_addresses_the_payloads(tmp_path):
    samples = some_samples(30)
    entry = write_shard(tmp_path / "x-00000-00000", samples)
    tar = (tmp_path / "x-00000-00000.tar").read_bytes()
    rows = np.load(tmp_path / "x-00000-00000.npy")
    assert entry["samples"] == len(rows) == 30
    assert entry["bytes"] == len(tar)
    for row, (_, sample) in zip(rows, samples, strict=True):
        found = decode_sample(tar[row["offset"] : row["offset"] + row["size"]])
        np.testing.assert_array_equal(found.source, sample.source)
        assert (row["source_length"], row["target_length"]) == (
            len(sample.source),
            len(sample.target),
        )
        assert found.metadata == sample.metadata


def test_bytes_depend_on_the_samples_alone(tmp_path):
    entries = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        entries.append(write_shard(tmp_path / name / "x-00000-00000", some_samples(5)))
    assert entries[0] == entries[1]
    assert entries[0]["sha256"] == shards.file_sha256(tmp_path / "a" / "x-00000-00000.tar")
    assert len(list(tmp_path.rglob("*"))) == 6  # no temporary file stays


def test_a_failing_writer_leaves_nothing(tmp_path):
    def broken():
        yield from some_samples(3)
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="the input is gone"):
        write_shard(tmp_path / "x-00000-00000", broken())
    assert list(tmp_path.iterdir()) == []


def test_ids_that_do_not_fit_are_refused():
    sample = Sample(np.array([70_000]), np.array([1]))
    with pytest.raises(ValueError, match="does not fit uint16"):
        encode_sample(sample, "uint16")
    assert decode_sample(encode_sample(sample, "uint32"), "uint32").source.tolist() == [70_000]


def test_keys_that_webdataset_would_split_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.b"):
        write_shard(tmp_path / "x", [("a.b", Sample(np.array([1]), np.array([1])))])


def test_dataset_counts_over_shards(dataset_folder):
    dataset = Dataset(dataset_folder)
    assert len(dataset) == 26
    assert [dataset[i].metadata["id"] for i in range(26)] == [
        *(f"0-{i}" for i in range(17)),
        *(f"2-{i}" for i in range(9)),
    ]
    assert dataset.locate(16) == (0, 16)
    assert dataset.locate(17) == (2, 0)
    assert len(dataset.index(1)) == 0
    for wrong in (-1, 26):
        with pytest.raises(IndexError):
            dataset[wrong]


def test_an_index_is_read_in_sequence_when_it_is_opened(dataset_folder, monkeypatch):
    """Its rows are needed at random: through page faults each would be a request of its own."""
    read, chunks = [], shards.chunks

    def noted(path):
        for chunk in chunks(path):
            read.append((path.name, len(chunk)))
            yield chunk

    dataset = Dataset(dataset_folder)
    monkeypatch.setattr(shards, "chunks", noted)
    dataset.rows(np.arange(17))
    dataset.rows(np.arange(17))
    size = (dataset_folder / "tiny-00000-00000.npy").stat().st_size
    assert read == [("tiny-00000-00000.npy", size)]


def test_dataset_reads_in_any_order_with_few_open_shards(dataset_folder, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_SHARDS", 1)
    dataset = Dataset(dataset_folder)
    order = list(range(26)) * 2
    random.Random(0).shuffle(order)
    names = [sample.metadata["id"] for sample in dataset]
    assert [dataset[i].metadata["id"] for i in order] == [names[i] for i in order]


def test_dataset_can_be_pickled_to_another_process(dataset_folder):
    dataset = Dataset(dataset_folder)
    _ = dataset[0]
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.fingerprint == dataset.fingerprint
    assert copy[25].metadata == dataset[25].metadata


def test_fingerprint_depends_on_the_manifest_not_its_formatting(folder):
    before = Dataset(folder).fingerprint
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(manifest.items())), indent=7))
    assert Dataset(folder).fingerprint == before
    change_manifest(folder, split="test")
    assert Dataset(folder).fingerprint != before


def test_missing_folder_and_unfinished_folder(tmp_path):
    with pytest.raises(ValueError, match=r"no dataset folder .*preprocessing\.pretrain"):
        Dataset(tmp_path / "none")
    with pytest.raises(ValueError, match="is not a dataset folder: it has no manifest"):
        Dataset(tmp_path)
    (tmp_path / ".items").mkdir()  # what a job leaves while it works
    with pytest.raises(
        ValueError, match=r"is incomplete: it has no manifest.json; run the command"
    ):
        Dataset(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2, expected 1"),
        ({"counts": None}, "field 'counts'"),
        ({"kind": "other"}, "kind is 'other'"),
        ({"id_dtype": "int8"}, "id_dtype is 'int8'"),
        ({"tokenizer": {"file": "tokenizer.model"}}, "tokenizer needs"),
        ({"shards": [{"name": "x"}]}, "shard 0 needs exactly name, samples, bytes, sha256"),
        *[
            (
                {"shards": [{"name": name, "samples": 1, "bytes": 1, "sha256": ""}]},
                f"is {name!r}, exp",
            )
            for name in ("../elsewhere", "/etc/passwd", "..", "", 7)
        ],
        (
            {"tokenizer": {"file": "../tokenizer.model", "sha256": "", "vocab_size": 9}},
            "tokenizer file is '../tokenizer.model'",
        ),
    ],
)
def test_manifests_we_cannot_read(folder, changes, message):
    change_manifest(folder, **changes)
    with pytest.raises(ValueError, match=message):
        Dataset(folder)


def test_a_manifest_that_is_not_json(folder):
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        Dataset(folder)


def test_missing_and_truncated_shards_are_named(folder):
    tar, index = folder / "tiny-00002-00000.tar", folder / "tiny-00002-00000.npy"
    whole, rows = tar.read_bytes(), index.read_bytes()
    tar.write_bytes(whole[:-512])
    with pytest.raises(ValueError, match=r"tiny-00002-00000\.tar has .* bytes"):
        Dataset(folder)[20]
    tar.unlink()
    with pytest.raises(ValueError, match=r"tiny-00002-00000\.tar is missing"):
        Dataset(folder)[20]
    index.write_bytes(rows[:-20])
    with pytest.raises(ValueError, match=r"tiny-00002-00000\.npy"):
        Dataset(folder)[20]
    np.save(index, np.arange(9))
    with pytest.raises(ValueError, match=r"does not hold the 9 rows"):
        Dataset(folder)[20]
    assert Dataset(folder)[3].metadata["id"] == "0-3"  # the others still read


def test_a_damaged_payload_is_named(folder):
    tar = folder / "tiny-00000-00000.tar"
    content = bytearray(tar.read_bytes())
    offset = int(np.load(folder / "tiny-00000-00000.npy")[4]["offset"])
    content[offset : offset + 8] = b"\xc1" * 8
    tar.write_bytes(content)
    with pytest.raises(ValueError, match=f"damaged at byte {offset}"):
        Dataset(folder)[4]


def test_another_tokenizer_is_refused_with_both_hashes(folder):
    model = folder / "tokenizer.model"
    expected = shards.file_sha256(model)
    model.write_bytes(model.read_bytes() + b"x")
    with pytest.raises(ValueError, match=expected) as error:
        Dataset(folder)
    assert shards.file_sha256(model) in str(error.value)
    model.unlink()
    with pytest.raises(ValueError, match="is missing"):
        Dataset(folder)


@pytest.mark.parametrize("content", ["[]", "5"])
def test_a_manifest_of_another_form_is_named(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json is not a JSON object"):
        Dataset(folder)


def test_index_headers_are_parsed_one_at_a_time(dataset_folder, monkeypatch):
    """Some Pythons raise SystemError where threads parse at once: too rarely to wait for."""
    inside = threading.Semaphore(0)  # counts the threads
    most, load = [], np.load

    def watched(*args, **kwargs):
        inside.release()
        time.sleep(0.001)
        most.append(inside._value)
        inside.acquire()
        return load(*args, **kwargs)

    monkeypatch.setattr(np, "load", watched)
    datasets = [Dataset(dataset_folder) for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda dataset: dataset.index(0), datasets))
    assert most == [1] * 16
