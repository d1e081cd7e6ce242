"""Compression and archives are told by content; nothing in them is dropped unsaid."""

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
from set_records import memory_below, read

from pipeline.shards import Dataset
from preprocessing import finetune
from preprocessing.readers import entries
from preprocessing.readers.archives import left_out
from preprocessing.readers.entries import Folder, Item

GOOD = [
    {"id": str(k), "document": f"The mill {k}. It turns.", "summary": f"Mill {k}."}
    for k in range(4)
]
LINES = "".join(json.dumps(record) + "\n" for record in GOOD).encode()
HALVES = [b"".join(part) for part in (LINES.splitlines(True)[:2], LINES.splitlines(True)[2:])]


def ids(path: Path, split: str = "train") -> list[str]:
    return [record["id"] for record in read("jsonl", path, split)]


def zstd(content: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is an extra")
    return zstandard.ZstdCompressor().compress(content)


def tar(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def patched_zip(path: Path, flags: int = 0, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip whose headers claim other flags or another method, as other programs write them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.jsonl", LINES)
    content = path.read_bytes()
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.index(signature) + at
        content = content[:start] + struct.pack("<HH", flags, method) + content[start + 4 :]
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.json", "x"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
def test_compression_is_told_by_content(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(LINES))
    assert ids(path) == list("0123")
    path.write_bytes(pack(HALVES[0]) + pack(HALVES[1]))  # several streams or frames
    assert ids(path) == list("0123")
    path.write_bytes(gzip.compress(pack(LINES)))
    assert ids(path) == list("0123")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_file_is_named(tmp_path, pack, damage):
    packed = bytearray(pack(os.urandom(3000).hex().encode() + b"\n" + LINES))
    if damage == "cut":
        del packed[-20:]
    else:
        packed[len(packed) // 2 :] = bytes(len(packed) // 2)
    (tmp_path / "x.jsonl").write_bytes(packed)
    with pytest.raises(ValueError, match=r"x\.jsonl is corrupt or truncated after record \d"):
        read("jsonl", tmp_path / "x.jsonl")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar_members_are_read_by_split(tmp_path, mode):
    files = {"set/train.jsonl": HALVES[0], "set/test.jsonl": HALVES[1], "set/._x": b"", "a.md": b""}
    path = tar(tmp_path / "set.jsonl.gz", files, mode)  # whatever the name says
    assert ids(path) == ["0", "1"]
    assert ids(path, "test") == ["2", "3"]
    assert left_out(Item(path), "train") == ("a.md", "set/test.jsonl")
    path.write_bytes(path.read_bytes()[: -10 if mode != "w" else 700])
    with pytest.raises(ValueError, match="corrupt or truncated"):
        ids(path)


def test_lists_of_ids_count_in_a_tar_as_in_a_folder(tmp_path):
    files = {f"gov/crs/{record['id']}.json": json.dumps(record).encode() for record in GOOD}
    files |= {"gov/split_ids/crs_train.ids": b"1\n3\n", "gov/split_ids/crs_test.ids": b"0\n"}
    path = tar(tmp_path / "gov.tar.gz", files)
    assert ids(path) == ["1", "3"]
    assert ids(path, "test") == ["0"]
    assert left_out(Item(path), "train") == ("gov/crs/0.json", "gov/crs/2.json")


def test_links_and_several_members_of_one_name_are_not_read_unsaid(tmp_path):
    path = tar(tmp_path / "x.tar", {"a.jsonl": HALVES[0]}, "w")
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("b.jsonl")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert ids(path) == ["0", "1"]
    with tarfile.open(path, "a") as archive:
        info = tarfile.TarInfo("a.jsonl")
        info.size = len(HALVES[1])
        archive.addfile(info, io.BytesIO(HALVES[1]))
    with pytest.raises(ValueError, match=r"x\.tar holds several files named a\.jsonl"):
        ids(path)


def test_where_only_some_files_name_a_split_all_are_named(tmp_path):
    for name in ("bridges", "night_train", "roads"):
        (tmp_path / f"{name}.json").write_bytes(LINES)
    with pytest.raises(ValueError, match=r"\(night_train\.json\).*\(bridges\.json, roads\.json\)"):
        read("jsonl", tmp_path)
    (tmp_path / "night_train.json").rename(tmp_path / "night.json")
    assert len(read("jsonl", tmp_path)) == 12


def test_every_data_format_of_a_folder_is_read_and_the_rest_is_named(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(GOOD[:1]))
    (tmp_path / "train2.jsonl.bz2").write_bytes(bz2.compress(LINES.splitlines()[1]))
    (tmp_path / "train3.ndjson.xz").write_bytes(lzma.compress(LINES.splitlines()[2]))
    (tmp_path / "train4.tsv").write_text("id\tdocument\tsummary\n3\tD\tS\n")
    (tmp_path / "notes.txt").write_text("No records here.\n")
    (tmp_path / "train.docx").write_bytes(b"")
    (tmp_path / ".hidden.jsonl").write_bytes(LINES)
    assert ids(tmp_path) == list("0123")
    assert left_out(Folder(tmp_path), "train") == ("notes.txt", "train.docx")


def test_files_left_out_are_in_closing_line_dry_run_and_manifest(exit_of, tokenizer_path, tmp_path):
    path = tar(tmp_path / "s.tar.gz", {"train.jsonl": HALVES[0], "test.jsonl": HALVES[1]})
    options = ["--dataset", "jsonl", "--input", path, "--tokenizer", tokenizer_path]
    options += ["--output", tmp_path / "set"]
    for more in (["--dry_run"], []):
        status, said, _ = exit_of(finetune.main, *options, *more)
        assert status == 0
        assert "left out of s.tar.gz: 1 (test.jsonl)" in said
    manifest = Dataset(tmp_path / "set").manifest
    assert manifest["left_out_files"] == {"s.tar.gz": {"files": 1, "first": ["test.jsonl"]}}


@pytest.mark.parametrize(
    ("options", "said"),
    [({"flags": 1}, "encrypted"), ({"method": 9}, "method Deflate64"), ({"method": 97}, "97")],
)
def test_a_zip_that_python_cannot_read_is_one_line(tmp_path, options, said):
    path = patched_zip(tmp_path / "x.zip", **options)
    with pytest.raises(ValueError, match=rf"x\.zip holds train\.jsonl .*{said}.*Deflate$"):
        read("jsonl", path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LINES.decode().encode("utf-16"), r"is UTF-16; convert it with `iconv"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(99), "is a 7z archive; unpack it"),
        (b"Rar!\x1a\x07" + bytes(99), "is a RAR archive; unpack it"),
        (b"%PDF-1.4\n%\xe2\xe3\n1 0 obj\n", r"has no record that can be read \(.*not JSON 2"),
        (gzip.compress(b"PAR1" + bytes(99)), "is a Parquet file inside another file"),
        (b"id,document\n1,D\n", r"has no record that can be read \(not JSON 2\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # gzip holds the time
)
def test_a_file_without_records_is_named_and_not_counted_as_one(tmp_path, content, said):
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=rf"x\.jsonl {said}"):
        read("jsonl", tmp_path / "x.jsonl")


@pytest.mark.slow
def test_a_bomb_takes_bounded_memory(tmp_path, monkeypatch):
    """One line of 50 MB, packed into 50 KB, is never held whole."""
    monkeypatch.setattr(entries, "LONGEST_LINE", 2**20)
    content = HALVES[0] + bytes(50_000_000) + b"\n" + HALVES[1]
    tar(tmp_path / "x.tar.gz", {"x.jsonl": content})
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.jsonl", content)
    del content
    for name in ("x.tar.gz", "x.zip"):
        with memory_below(10_000_000):
            found = [r if isinstance(r, str) else 1 for r in read("jsonl", tmp_path / name)]
        assert found == [1, 1, "too long", 1, 1]


def test_a_file_name_that_is_not_utf8_loses_nothing(exit_of, tokenizer_path, tmp_path):
    name = os.fsdecode(b"caf\xe9")
    for path in (tmp_path / f"{name}.jsonl", tmp_path / name / "x.jsonl"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(LINES)
    for source in (tmp_path / f"{name}.jsonl", tmp_path / name):
        output = tmp_path / f"out-{source.suffix[1:]}" / name
        options = ["--dataset", "jsonl", "--input", source, "--tokenizer", tokenizer_path]
        status, said, _ = exit_of(finetune.main, *options, "--output", output)
        assert (status, "4 samples" in said) == (0, True)
        assert len(Dataset(output)) == 4
    (tmp_path / f"{name}.jsonl").write_bytes(b"nonsense")
    status, _, said = exit_of(finetune.main, *options[:2], "--input", tmp_path / f"{name}.jsonl",
                              *options[4:], "--output", tmp_path / "out")  # fmt: skip
    assert status == 2
    assert "caf\\xe9.jsonl has no record that can be read (not JSON 1)" in said
