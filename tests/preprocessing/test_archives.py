"""File formats and archives of summarisation sets: JSON, CSV, Parquet, .zip, folders, blocks."""

import csv
import gzip
import json
import sys
import zipfile

import pytest
from set_records import CHAPTER, COHAN, CRS, GAO, lines, read

from preprocessing.readers.entries import Folder, Item
from preprocessing.readers.inputs import find_items
from preprocessing.readers.summarisation_sets import read_set

GOOD = [{"id": str(k), "document": f"D {k}", "summary": f"S {k}"} for k in range(3)]
EXPECTED = ["D 0", "D 1", "D 2"]


def documents(path, split="train"):
    return [record["document"] for record in read("jsonl", path, split)]


def test_json_documents_and_json_lines_are_recognised(tmp_path):
    whole = json.dumps(GOOD, indent=1).encode()
    for name, content in {
        "array.json": whole,
        "array.json.gz": gzip.compress(whole),
        "line.json": json.dumps(GOOD).encode(),
        "lines.json": b"".join(json.dumps(record).encode() + b"\n" for record in GOOD),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert documents(tmp_path / name) == EXPECTED, name
    one = tmp_path / "object.json"
    one.write_text(json.dumps(GOOD[0], indent=1))
    assert documents(one) == EXPECTED[:1]
    one.write_text(json.dumps(GOOD[0], indent=1)[:-5])
    with pytest.raises(ValueError, match=r"object\.json is not valid JSON at line 4 \(Untermin"):
        read("jsonl", one)
    one.write_bytes(b'[{"document": "\xff"}, 1]')
    assert read("jsonl", one) == ["bad encoding", "not JSON"]


def test_zip_members_are_read_in_order_and_by_split(tmp_path):
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/test.jsonl", json.dumps(GOOD[2]))
        archive.writestr("set/validation.jsonl", "\n" + json.dumps(GOOD[1]))
        archive.writestr("set/train.jsonl", json.dumps(GOOD[0]) + "\nnonsense\n")
        archive.writestr("__MACOSX/set/._train.jsonl", b"\x00\x05\x16\x07")
        archive.writestr("set/vocab.txt", "word 1")
    assert read("jsonl", path)[1:] == ["not JSON"]
    assert documents(path, "dev") == ["D 1"]
    assert documents(path, "test") == ["D 2"]
    with pytest.raises(
        ValueError, match="has files for test, train, validation, none for --split x"
    ):
        documents(path, "x")
    with zipfile.ZipFile(path, "w") as archive:
        for record in reversed(GOOD):
            member = json.dumps(record, indent=1).encode()
            archive.writestr(f"{record['id']}.json.gz", gzip.compress(member))
    assert documents(path) == EXPECTED
    entries = list(read_set(Item(path), "jsonl", "train"))
    assert [entry.number for entry in entries] == [1, 2, 3]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match="corrupt or truncated"):
        documents(path)


def test_csv(tmp_path):
    """kmfoda/booksum: fields with line breaks and quotes, some longer than csv's own limit."""
    long = 'He said "no", and\nleft. ' * 10_000
    rows = [
        {"chapter_path": "a", "chapter": long, "summary_text": "He left."},
        {"chapter_path": "b", "chapter": "B.", "summary_text": "", "summary": CHAPTER["summary"]},
    ]
    path = tmp_path / "train.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["chapter_path", "chapter", "summary", "summary_text"])
        writer.writeheader()
        writer.writerows(rows)
    expected = [
        {"id": "a", "document": long, "summaries": ["He left."]},
        {"id": "b", "document": "B.", "summaries": ["Two kinds of states."]},
    ]
    assert read("booksum-chapter", path) == expected
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read("booksum-chapter", tmp_path / "x.csv.gz") == expected
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(path, "train.csv")
    assert read("booksum-chapter", tmp_path / "x.zip") == expected
    path.write_bytes(path.read_bytes().replace(b"B.", b"\xff."))
    assert read("booksum-chapter", path)[1] == "bad encoding"


def test_a_folder_of_reports_is_read_by_its_split_lists(tmp_path):
    folder = tmp_path / "gov-report"
    for kind, records in {"crs": [CRS, {**CRS, "id": "RL2"}], "gao": [GAO]}.items():
        (folder / kind).mkdir(parents=True)
        for record in records:
            (folder / kind / f"{record['id']}.json").write_text(json.dumps(record, indent=1))
    assert [record["id"] for record in read("govreport", folder)] == ["RL1", "RL2", "GAO-1"]
    (folder / "split_ids").mkdir()
    for name, ids in {"crs_train": "RL2\n", "crs_valid": "RL1\n", "gao_train": "GAO-1\n"}.items():
        (folder / "split_ids" / f"{name}.ids").write_text(ids)
    assert [record["id"] for record in read("govreport", folder)] == ["RL2", "GAO-1"]
    assert [record["id"] for record in read("govreport", folder, "validation")] == ["RL1"]
    with pytest.raises(ValueError, match="split_ids lists no file for --split test"):
        read("govreport", folder, "test")
    (item,) = find_items([str(folder)], block_size=2**20)
    assert item == Folder(folder)
    assert item.size == sum(path.stat().st_size for path in folder.rglob("*.*"))


def test_only_json_lines_are_split_into_blocks(tmp_path):
    path = lines(tmp_path / "x.jsonl", *GOOD)
    array = tmp_path / "array.json"
    array.write_text(json.dumps(GOOD))
    items = find_items([str(path), str(array)], block_size=60)
    assert items[0].path == array
    assert len(items) == 4
    found = [entry.record for item in items[1:] for entry in read_set(item, "jsonl", "train")]
    assert [record["document"] for record in found] == EXPECTED
    with pytest.raises(ValueError, match="no file matches"):
        find_items([str(tmp_path / "absent")], block_size=60)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    from pyarrow import parquet

    records = [{**COHAN, "labels": 0}, {**COHAN, "article_text": None, "labels": 0}] * 50
    path = tmp_path / "train-00000-of-00001.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(records), path)
    assert read("arxiv", path) == read("arxiv", lines(tmp_path / "x.jsonl", *records))
    entries = list(read_set(Item(path), "arxiv", "train"))
    assert [entry.number for entry in entries] == list(range(1, 101))
    assert entries[-1].position == path.stat().st_size
    (tmp_path / "x.jsonl").unlink()
    assert read("arxiv", tmp_path) == read("arxiv", path)  # as a folder
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="corrupt or not a Parquet file"):
        read("arxiv", path)


def test_parquet_without_pyarrow_names_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        read("arxiv", tmp_path / "x.parquet")
