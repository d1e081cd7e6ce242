"""Readers: every line once, whatever the block size; long lines are never held in memory."""

import gzip
import json

import pytest
from made_up_text import c4_lines, write_lines

from preprocessing.readers import entries, inputs
from preprocessing.readers.corpora import read_c4
from preprocessing.readers.entries import TOO_LONG, Entry, Item
from preprocessing.readers.inputs import describe_input, find_inputs, split_items
from preprocessing.readers.records import read_records


def read(item: Item) -> list[Entry]:
    return [entry for _, entry in read_records(item, "train")]


def records(items):
    return [entry.record for item in items for entry in read(item)]


@pytest.mark.parametrize("size", [1, 7, 100, 1000, 5000, 10**6])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_blocks_read_every_line_once(tmp_path, size, end):
    lines = [*c4_lines(0, 9), "", '{"text": "é€𝄞"}', "x" * 300, '{"text": 1}']
    path = tmp_path / "c4.jsonl"
    path.write_text((end or "\n").join(lines) + end, encoding="utf-8", newline="")
    whole = read(Item(path))
    assert [entry.record for entry in whole][:9] == [json.loads(line) for line in lines[:9]]
    assert len(whole) == 12
    items = split_items([path], size)
    assert len(items) == -(-path.stat().st_size // size)
    assert sum(item.size for item in items) == path.stat().st_size
    assert records(items) == [entry.record for entry in whole]
    for item in items:
        entries = read(item)
        assert len({entry.number for entry in entries}) == len(entries)
    assert whole[-1].position == path.stat().st_size


def test_compressed_files_are_not_split(tmp_path):
    path = write_lines(tmp_path / "c4.json.gz", c4_lines(0, 50))
    assert split_items([path], 100) == [Item(path)]
    # A .gz of several members, as concatenation makes it, is one text.
    path.write_bytes(path.read_bytes() + gzip.compress(c4_lines(1, 1)[0].encode()))
    entries = list(read_c4(Item(path)))
    assert len(entries) == 51
    assert entries[-1].position == path.stat().st_size


@pytest.mark.parametrize("suffix", [".jsonl", ".json.gz"])
@pytest.mark.parametrize("last", [True, False])
def test_a_line_beyond_the_limit_is_counted_and_skipped(tmp_path, monkeypatch, suffix, last):
    monkeypatch.setattr(entries, "LONGEST_LINE", 64)
    short = '{"text": "a"}'
    exact = '{"text": "' + "b" * 51 + '"}'
    for long in ("c" * 65, "c" * 200, "c" * (65 * 3)):
        lines = [short, exact, long] if last else [short, exact, long, short]
        path = write_lines(tmp_path / f"c4{suffix}", lines)
        found = [entry.record for entry in read(Item(path))]
        assert found == [
            {"text": "a"},
            {"text": "b" * 51},
            TOO_LONG,
            *([] if last else [{"text": "a"}]),
        ]


@pytest.mark.parametrize("suffix", [".jsonl", ".json.gz"])
def test_a_byte_order_mark_is_not_part_of_the_first_record(tmp_path, suffix):
    path = write_lines(tmp_path / f"c4{suffix}", ["\ufeff" + '{"text": "a"}', '{"text": "b"}'])
    assert records([Item(path)]) == [{"text": "a"}, {"text": "b"}]


def test_a_changed_input_has_another_description(tmp_path):
    path = write_lines(tmp_path / "c4.json.gz", c4_lines(0, 3000))
    before = describe_input(path)
    assert path.stat().st_size > 2 * inputs.EDGE
    lines = c4_lines(0, 3000)
    lines[1500] = lines[1500].replace("e", "f", 1)
    write_lines(path, lines)
    assert describe_input(path).split(", ")[2] != before.split(", ")[2]


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is a folder; give its files"):
        find_inputs([str(tmp_path)])


def test_a_line_longer_than_a_block_is_read_once(tmp_path):
    path = write_lines(tmp_path / "c4.jsonl", ['{"text": "' + "a" * 1000 + '"}', '{"text": "b"}'])
    items = split_items([path], 100)
    assert [len(records([item])) for item in items] == [1, *[0] * 9, 1]
