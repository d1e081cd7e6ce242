"""JSON documents and tables: every record once, broken ones counted, memory bounded."""

import csv
import gzip
import io
import json
import random

import pytest
from made_up_text import write_lines
from set_records import memory_below, read

from pipeline.shards import Dataset
from preprocessing import finetune, pretrain
from preprocessing.readers import entries
from preprocessing.readers.corpora import read_c4
from preprocessing.readers.entries import Item
from preprocessing.readers.inputs import split_items

GOOD = [{"id": str(k), "document": f"D {k}", "summary": f"S {k}"} for k in range(8)]
ONE_A_LINE = "".join(json.dumps(record) + "\n" for record in GOOD)
PRETTY = "".join(json.dumps(record, indent=1) + "\n" for record in GOOD)


def found(path):
    return [r if isinstance(r, str) else r["document"] for r in read("jsonl", path)]


@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.txt", "x.json.gz"])
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        json.dumps(GOOD, indent=1),
        "\ufeff" + json.dumps(GOOD),
        "\n" + ONE_A_LINE,
        "\ufeff" + ONE_A_LINE,
        "\ufeff\r\n \n" + ONE_A_LINE.replace("\n", "\r\n"),
        PRETTY,
        "[\n" + ONE_A_LINE.replace("}\n", "},\n")[:-2] + "\n]\n",
    ],
)
def test_the_content_tells_lines_from_documents(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert found(path) == [record["document"] for record in GOOD]
    (item,) = split_items([path], 10) if text[0] == "[" else [Item(path)]  # no block of a document
    assert item == Item(path)


def test_a_broken_first_line_costs_one_record(tmp_path):
    for broken in ('{"id": "0", "docu', "nonsense", '{"a": 1}}'):
        (tmp_path / "x.json").write_text(broken + "\n" + ONE_A_LINE)
        assert found(tmp_path / "x.json") == ["not JSON", *(r["document"] for r in GOOD)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(GOOD, indent=1)[:-30], r"is not valid JSON at line \d+ .*; is it cut short"),
        (json.dumps(GOOD, indent=1)[:-2], "is not valid JSON: the array does not end, after line"),
        ('[{"document": "D"},\n{"a": 2,}\n]', r"is not valid JSON at line 2 \(Expecting property"),
        (
            '{"data": [\n' + ONE_A_LINE.replace("}\n", "},\n")[:-2] + "\n]}",
            ": record 1 has the keys",
        ),
        ("[" * 100_000, "is not valid JSON"),
        ('{\n"a": ' + "[" * 100_000, "is not valid JSON at line 1"),
    ],
)
def test_a_broken_document_is_named_with_its_line(tmp_path, text, said):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=rf"x\.json ?{said}"):
        read("jsonl", tmp_path / "x.json")


@pytest.mark.parametrize("chunk", [1, 2, 7, 100])
def test_documents_do_not_depend_on_the_pieces_in_which_they_are_read(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("preprocessing.readers.json_records.CHUNK", chunk)
    draw = random.Random(chunk)
    records = [
        {"document": "".join(draw.choices('ab "\\é[]{},\n', k=draw.randrange(1, 60))) + "x"}
        for _ in range(30)
    ]
    for indent in (None, 1):
        (tmp_path / "x.json").write_text(json.dumps([12345, *records, 678], indent=indent))
        expected = ["not JSON", *(record["document"] for record in records), "not JSON"]
        assert found(tmp_path / "x.json") == expected


@pytest.mark.slow
def test_a_document_takes_the_memory_of_one_record(tmp_path, monkeypatch):
    """Parsed whole, each of the first two would take over 100 MB."""
    (tmp_path / "x.json").write_text('{\n"data": [' + "{}," * 1_500_000 + "0]}")
    with (
        memory_below(60_000_000),
        pytest.raises(ValueError, match="has a value that is too long or not JSON at line 1"),
    ):
        read("jsonl", tmp_path / "x.json")
    (tmp_path / "x.jsonl").write_text('{"data": [' + "[]," * 1_500_000 + "0]}\n" + ONE_A_LINE)
    with memory_below(60_000_000):
        assert found(tmp_path / "x.jsonl")[0] == "too long"
    (tmp_path / "x.json").write_text("[" + (ONE_A_LINE.replace("}\n", "},") * 5000)[:-1] + "]")
    with memory_below(10_000_000):
        assert sum(1 for _ in read_c4(Item(tmp_path / "x.json"))) == 40_000
    monkeypatch.setattr(entries, "LONGEST_LINE", 2**20)
    (tmp_path / "x.json").write_text('[{"document": "' + "a" * 2**21 + '"}]')
    with pytest.raises(ValueError, match=r"x\.json has a value that is too long"):
        read("jsonl", tmp_path / "x.json")


def table(dialect: dict, rows: list[dict] = GOOD) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["id", "document", "summary"], **dialect)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize(
    "dialect",
    [
        {},
        {"delimiter": ";"},
        {"delimiter": "\t"},
        {"quoting": csv.QUOTE_ALL},
        {"lineterminator": "\n"},
        {"lineterminator": "\r"},
        {"doublequote": False, "escapechar": "\\", "quoting": csv.QUOTE_ALL},
    ],
)
def test_tables_as_programs_write_them(tmp_path, dialect):
    rows = [
        {"id": "0", "document": 'He said "no", and\nleft; then\the did.', "summary": '"No".'},
        {"id": "1", "document": '"wait, do not sail"', "summary": "é"},
        *GOOD[2:],
    ]
    (tmp_path / "x.csv").write_text("\ufeff" + table(dialect, rows), newline="")
    records = read("jsonl", tmp_path / "x.csv")
    assert [(r["id"], r["document"], *r["summaries"]) for r in records] == [
        tuple(row.values()) for row in rows
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('b,"He said \\"no\\", twice","\\"S\\""', ['He said "no", twice']),  # Spark
        ('b,"a backslash \\\\",S', ["a backslash \\\\"]),
        ('b,"C:\\new",S', ["C:\\new"]),
        ('b,"D","unclosed', ["malformed row"]),
        ('b,"D" and more,S', ["malformed row"]),
        ("b,D,S,more", ["malformed row"]),
        ("b,D", ["malformed row"]),
        ('b,"two\nlines",S,more', ["malformed row"]),
        (" ", []),
        ('b,5" wide,S', ['5" wide']),
    ],
)
def test_a_broken_row_is_read_or_counted_and_the_next_one_is_read(tmp_path, row, expected):
    (tmp_path / "x.csv").write_text(f'id,document,summary\na,A,S\n{row}\nc,C,S\nd,"D",S\n')
    assert found(tmp_path / "x.csv") == ["A", *expected, "C", "D"]


def test_tabs_separate_fields_without_quotes(tmp_path):
    rows = 'id\tdocument\tsummary\na\t"Hello" he said\tS\nb\t"open, and\tS\nc\t"whole"\tS\n'
    (tmp_path / "x.tsv").write_text(rows)
    assert found(tmp_path / "x.tsv") == ['"Hello" he said', '"open, and', "whole"]


def test_a_column_named_twice_and_a_table_without_rows_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("id,document,document\na,b,c\n")
    with pytest.raises(ValueError, match=r"x\.csv has several columns document; rename them"):
        read("jsonl", tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("id,document,summary\n" + 'a,"b\n' * 3)
    with pytest.raises(ValueError, match=r"x\.csv has no record that can be read \(malformed row"):
        read("jsonl", tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("")
    assert read("jsonl", tmp_path / "x.csv") == []


def test_a_long_row_is_counted_and_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "LONGEST_LINE", 100)
    (tmp_path / "x.csv").write_text(f"id,document,summary\na,{'b' * 1000},S\nc,C,S\n")
    assert found(tmp_path / "x.csv") == ["too long", "C"]


TEXT = "One is here. Two is there. Three are near. Four are far. Five is none."


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", f"body,link\n{TEXT},https://a.org/\n"),
        ("x.json", json.dumps([{"body": TEXT, "link": "https://a.org/"}])),
        ("x.jsonl", json.dumps({"doc": {"body": TEXT}, "link": "https://a.org/"})),
    ],
)
def test_a_corpus_of_other_names_and_forms(exit_of, tokenizer_path, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    fields = ["--text_field", "doc.body" if "doc" in content else "body", "--fields", "url=link"]
    options = ["--input", tmp_path / name, "--tokenizer", tokenizer_path]
    status, _, error = exit_of(pretrain.main, *options, "--output", tmp_path / "out", *fields)
    assert (status, error.count("error")) == (0, 0)
    dataset = Dataset(tmp_path / "out")
    assert [sample.metadata["url"] for sample in dataset] == ["https://a.org/"]
    assert dataset.manifest["settings"]["fields"].endswith("url=link")


def test_pairs_of_other_names(exit_of, tokenizer_path, tmp_path):
    record = {"article": "The mill turns.", "meta": {"highlights": "A mill.", "key": 7}}
    source = write_lines(tmp_path / "x.jsonl", [json.dumps(record)])
    options = ["--dataset", "jsonl", "--input", source, "--tokenizer", tokenizer_path]
    status, _, error = exit_of(finetune.main, *options, "--output", tmp_path / "none")
    assert status == 2
    options += ["--output", tmp_path / "out"]
    assert "record 1 has the keys article, meta" in error and "--fields" in error
    spaced = write_lines(tmp_path / "spaced.csv", [" document,summary", "The mill turns.,A mill."])
    other = [*options[:2], "--input", spaced, *options[4:6], "--output", tmp_path / "spaced"]
    error = exit_of(finetune.main, *other)[2]
    assert "record 1 has the keys ' document', summary;" in error
    more = ["--text_field", "article", "--fields", "summary=meta.highlights", "id=meta.key"]
    status, _, error = exit_of(finetune.main, *options, *more)
    assert status == 0, error
    (sample,) = Dataset(tmp_path / "out")
    assert (sample.metadata["id"], sample.metadata["references"]) == ("7", ["A mill."])
    for wrong, said in (
        (["--fields", "title=x"], "expected WHAT=NAME, WHAT one of document, summary, id"),
        (["--fields", "document=a", "--text_field", "b"], "give each once"),
    ):
        assert said in exit_of(finetune.main, *options, *wrong)[2]


def test_urls_in_metadata_and_half_a_surrogate_pair(tmp_path):
    urls = [
        {"url": "https://a.org/\ud83d"},
        {"metadata": {"url": "https://b.org/"}},
        {"meta": {"url": "https://c.org/"}},
        {"url": None, "metadata": "none"},
    ]
    path = write_lines(tmp_path / "x.jsonl", [json.dumps({"text": "T", **url}) for url in urls])
    assert [entry.record["url"] for entry in read_c4(Item(path))] == [
        "https://a.org/\\ud83d",
        "https://b.org/",
        "https://c.org/",
        "",
    ]


def test_rows_of_a_corpus_in_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    from pyarrow import parquet

    rows = [{"text": TEXT, "metadata": {"url": f"https://a.org/{k}"}} for k in range(100)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x")
    records = [entry.record for entry in read_c4(Item(tmp_path / "x"))]
    assert records == [{"text": TEXT, "url": f"https://a.org/{k}"} for k in range(100)]
