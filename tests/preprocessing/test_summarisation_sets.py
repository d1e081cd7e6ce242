"""Every form of every set, as released and as exported; containers; what is refused."""

import csv
import gzip
import json
import sys
import zipfile
from pathlib import Path

import pytest
from made_up_text import write_lines

from preprocessing.containers import Folder, find_items
from preprocessing.corpora import Item
from preprocessing.summarisation_sets import SETS, read_set

SHARED = Path(__file__).resolve().parents[2] / "../shared"
DATA = SHARED / "data"


def read(dataset, path, split="train", **options):
    item = Folder(path) if path.is_dir() else Item(path)
    return [entry.record for entry in read_set(item, dataset, split, **options)]


def lines(path, *records):
    return write_lines(path, [json.dumps(record) for record in records])


def section(title, *paragraphs, below=()):
    return {"section_title": title, "paragraphs": list(paragraphs), "subsections": list(below)}


COHAN = {
    "article_id": "1405.3379",
    "article_text": ["additive models @xcite .", "they are important ."],
    "abstract_text": ["<S> we study models . </S>", "<S> fig . 1 shows them . </S>"],
    "labels": None,
    "section_names": ["introduction", "results", "empty"],
    "sections": [["additive models @xcite ."], ["they are important ."], []],
}
CRS = {
    "id": "RL1",
    "reports": section("", below=[section("Intro", "p1", "p2", below=[section("Back", "p3")])]),
    "summary": ["s1", "s2"],
    "title": "An Overview",
}
GAO = {
    "id": "GAO-1",
    "report": [section("Letter", "p1", below=[section("Background", "p2")]), section("End", "p3")],
    "highlight": [
        section("Why GAO Did This Study", "s1", "s2"),
        section("What GAO Recommends", "not this"),
    ],
    "fastfact": ["f1"],
}
EPISODE = {
    "Transcript": ["Ann told Bob.", "Bob nodded."],
    "Recap": ["They talk.", "It ends."],
    "Show Title": "test",
    "Episode Title": "Pilot",
}
CHAPTER = {
    "bid": 1232,
    "chapter_path": "all_chapterized_books/1232-chapters/1.txt",
    "summary_path": "finished_summaries/x/section_0.txt",
    "book_id": "The Prince.chapter 1",
    "chapter": "All states are republics or principalities.",
    "summary": '{"name": "Chapter 1", "summary": "Two kinds of states."}',
}
CLEANED = [{"source": "x", "text": "One.", "analysis": ""}, {"source": "y", "text": "Two."}]
FORMS = {
    "cohan": (
        "arxiv",
        COHAN,
        "1405.3379",
        "additive models @xcite .\nthey are important .",
        [["we study models .", "fig . 1 shows them ."]],
    ),
    "cohan, sections alone": (
        "pubmed",
        {**COHAN, "article_text": None},
        "1405.3379",
        "additive models @xcite .\nthey are important .",
        [["we study models .", "fig . 1 shows them ."]],
    ),
    "cohan, no abstract": (
        "pubmed",
        {**COHAN, "abstract_text": ["<S>  </S>"]},
        "1405.3379",
        "additive models @xcite .\nthey are important .",
        [],
    ),
    "ccdv": (
        "arxiv",
        {"id": "7", "article": "A\nb", "abstract": "S"},
        "7",
        "A\nb",
        ["S"],
    ),
    "ccdv without an id": (
        "pubmed",
        {"article": "A b", "abstract": "S"},
        "a760b0e1e5180903",
        "A b",
        ["S"],
    ),
    "crs": ("govreport", CRS, "RL1", "Intro\np1\np2\nBack\np3", ["s1\ns2"]),
    "gao": ("govreport", GAO, "GAO-1", "Letter\np1\nBackground\np2\nEnd\np3", ["s1\ns2"]),
    "launch": (
        "govreport",
        {"id": "GAO_1", "document": "D", "summary": "S"},
        "GAO_1",
        "D",
        ["S"],
    ),
    "scrolls": (
        "govreport",
        {"id": "a", "pid": "a_0", "input": "D", "output": "S"},
        "a",
        "D",
        ["S"],
    ),
    "scrolls, hidden": (
        "summscreenfd",
        {"id": "a", "pid": "a_0", "input": "D", "output": None},
        "a",
        "D",
        [None],
    ),
    "instructions": (
        "govreport",
        {
            "instructions": ["Sum."],
            "outputs": ["S"],
            "input": "A b",
            "source": "",
            "evaluation": "",
        },
        "a760b0e1e5180903",
        "A b",
        ["S"],
    ),
    "summscreen": (
        "summscreenfd",
        {**EPISODE, "filename": "fd_1.json"},
        "fd_1.json",
        "Ann told Bob.\nBob nodded.",
        ["They talk.\nIt ends."],
    ),
    "summscreen, recap a text": (
        "summscreenfd",
        {**EPISODE, "Transcript": ["A b"], "Recap": "They talk."},
        "a760b0e1e5180903",
        "A b",
        ["They talk."],
    ),
    "kmfoda": (
        "booksum-chapter",
        {**CHAPTER, "summary_text": "Two kinds."},
        CHAPTER["chapter_path"],
        CHAPTER["chapter"],
        ["Two kinds."],
    ),
    "kmfoda, JSON alone": (
        "booksum-chapter",
        CHAPTER,
        CHAPTER["chapter_path"],
        CHAPTER["chapter"],
        ["Two kinds of states."],
    ),
    "ubaada, chapters": (
        "booksum-chapter",
        {"bid": 12, "book_title": "T", "chapter_id": "ch 1", "text": "D", "summary": CLEANED},
        "12/ch 1",
        "D",
        ["One.", "Two."],
    ),
    "ubaada, books": (
        "booksum-book",
        {"bid": 12, "title": "T", "text": "D", "summary": CLEANED},
        "12",
        "D",
        ["One.", "Two."],
    ),
    "ours": (
        "jsonl",
        {"id": 3, "document": "D", "summary": ["One.", None]},
        "3",
        "D",
        ["One.", None],
    ),
}


@pytest.mark.parametrize(
    ("dataset", "record", "name", "document", "summaries"), FORMS.values(), ids=FORMS
)
def test_each_form(dataset, record, name, document, summaries, tmp_path):
    expected = {"id": name, "document": document, "summaries": summaries}
    assert read(dataset, lines(tmp_path / "x.jsonl", record)) == [expected]


@pytest.fixture
def booksum(tmp_path):
    """BookSum's layout: alignments, texts, summaries as JSON under both suffixes and as text."""
    root = tmp_path / "booksum"
    for name, content in {
        "books/1/book_clean.txt": "\ufeffThe whole book.",
        "books/1/chapter_1.txt": "A chapter.",
        "summaries/a.json": json.dumps({"name": "x", "summary": ["First.", "Second."]}),
        "summaries/b.txt": json.dumps({"summary": "One text.", "analysis": None}),
        "summaries/c.txt": "Plain text.",
        "summaries/empty.json": json.dumps({"summary": []}),
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / "summaries/latin.txt").write_bytes(b"caf\xe9")
    return root


def aligned(root, *pairs, book="books/1/book_clean.txt"):
    records = [
        {"bid": "1", "title": "T", "book_path": book, "summary_path": pair} for pair in pairs
    ]
    return lines(root / "aligned.jsonl", *records)


def test_alignments_of_books(booksum, tmp_path):
    names = [f"summaries/{name}" for name in ("a.json", "b.txt", "c.txt", "empty.json", "gone.txt")]
    records = read("booksum-book", aligned(booksum, *names))
    assert {record["id"] for record in records} == {"1"}
    assert {record["document"] for record in records} == {"The whole book."}
    assert [record["summaries"] for record in records] == [
        ["First.\nSecond."],
        ["One text."],
        ["Plain text."],
        [None],
        [None],
    ]
    assert read("booksum-book", aligned(booksum, names[0], book="books/2")) == ["no text"]
    assert read("booksum-book", aligned(booksum, names[0], book="summaries/latin.txt")) == [
        "bad encoding"
    ]
    elsewhere = aligned(tmp_path, names[2])
    assert read("booksum-book", elsewhere) == ["no text"]
    assert read("booksum-book", elsewhere, root=booksum)[0]["summaries"] == ["Plain text."]


def test_alignments_of_chapters(booksum):
    record = {
        "bid": "1",
        "chapter_path": "books/1/chapter_1.txt",
        "summary_path": "summaries/c.txt",
    }
    assert read("booksum-chapter", lines(booksum / "chapters.jsonl", record)) == [
        {"id": "books/1/chapter_1.txt", "document": "A chapter.", "summaries": ["Plain text."]}
    ]


@pytest.mark.parametrize(
    "name", ["../secret.txt", "books/../../secret.txt", "link.txt", "absolute"]
)
def test_a_path_out_of_the_root_is_refused(name, booksum, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (booksum / "link.txt").symlink_to(secret)
    chosen = str(secret) if name == "absolute" else name
    with pytest.raises(ValueError, match="leaves --root"):
        read("booksum-book", aligned(booksum, "summaries/c.txt", book=chosen))
    with pytest.raises(ValueError, match="leaves --root"):
        read("booksum-book", aligned(booksum, chosen))


def test_an_unknown_form_names_what_it_has_and_what_was_expected(tmp_path):
    path = lines(tmp_path / "x.jsonl", {"text": "D", "label": 1})
    with pytest.raises(
        ValueError, match=r"record 1 has the keys text, label; arxiv is known as"
    ) as e:
        read("arxiv", path)
    assert "cohan (article_id, abstract_text); article-abstract (article, abstract)" in str(e.value)
    # Named, or once the file's form is known, such a record counts as broken.
    assert read("arxiv", path, form="article-abstract") == ["no text"]
    good = {"article": "A", "abstract": "S"}
    both = lines(tmp_path / "y.jsonl", good, {"text": "D"})
    assert read("arxiv", both)[1] == "no text"


def test_broken_records_have_reasons(tmp_path):
    good = {"id": "a", "document": "D", "summary": "S"}
    changes = ({"id": None}, {"id": ""}, {"document": 3}, {"document": "\udc80"})
    path = lines(tmp_path / "x.jsonl", good, *({**good, **change} for change in changes))
    assert read("jsonl", path)[1:] == ["no id", "no id", "no text", "bad encoding"]


GOOD = [{"id": str(k), "document": f"D {k}", "summary": f"S {k}"} for k in range(3)]
EXPECTED = ["D 0", "D 1", "D 2"]


def documents(path, split="train"):
    return [record["document"] for record in read("jsonl", path, split)]


def test_json_documents_and_lines_are_told_apart(tmp_path):
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
    assert read("jsonl", one) == ["not JSON"]
    one.write_bytes(b'[{"document": "\xff"}]')
    assert read("jsonl", one) == ["bad encoding"]
    one.write_text("[1]")
    assert read("jsonl", one) == ["not JSON"]


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
    with pytest.raises(ValueError, match="holds test, train, validation, nothing for --split x"):
        documents(path, "x")
    with zipfile.ZipFile(path, "w") as archive:
        for record in reversed(GOOD):
            member = json.dumps(record, indent=1).encode()
            archive.writestr(f"{record['id']}.json.gz", gzip.compress(member))
    assert documents(path) == EXPECTED
    entries = list(read_set(Item(path), "jsonl", "train"))
    assert [entry.number for entry in entries] == [1, 2, 3]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match="corrupt or cut short"):
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


def test_a_folder_of_reports_is_read_by_its_lists(tmp_path):
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


def test_blocks_of_lines_and_nothing_else(tmp_path):
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
    assert read("arxiv", tmp_path) == read("arxiv", path)  # as a folder; x.jsonl names no split
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="corrupt or no Parquet file"):
        read("arxiv", path)


def test_parquet_without_pyarrow_names_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        read("arxiv", tmp_path / "x.parquet")


def test_lengths_and_counts_are_the_papers():
    path = SHARED / "reference" / "paper_tables.json"
    if not path.is_file():
        pytest.skip("no shared folder with the paper's tables beside the repository")
    table = json.loads(path.read_text())["datasets"]
    for name in ("arXiv", "PubMed", "GovReport", "SummScreenFD", "BookSum-Chapter", "BookSum-Book"):
        assert list(SETS[name.lower()].pairs.values()) == table[name][:3], name


@pytest.mark.parametrize(
    ("dataset", "name", "count"),
    [
        ("arxiv", "arxiv_pubmed/arxiv_train.txt", 2),
        ("arxiv", "arxiv_pubmed/arxiv_val.txt", 2),
        ("pubmed", "arxiv_pubmed/pubmed_train.txt", 2),
        ("pubmed", "arxiv_pubmed/pubmed_val.txt", 2),
        ("govreport", "gov_report/tfds_crs_1.json", 1),
        ("govreport", "gov_report/tfds_gao_1.json", 1),
        ("govreport", "gov_report/gov_report_pairs.jsonl", 8),
        ("govreport", "gov_report", 10),
        ("summscreenfd", "summ_screen_fd/tfds_fd_test_example.json", 1),
    ],
)
def test_real_samples(dataset, name, count):
    path = DATA / name
    if not path.exists():
        pytest.skip("no shared folder with samples of the sets beside the repository")
    records = read(dataset, path)
    assert len(records) == len({record["id"] for record in records}) == count
    for record in records:
        (summary,) = record["summaries"]
        text = "\n".join(summary) if isinstance(summary, list) else summary
        assert text and "<S>" not in text
        assert record["document"].strip()


@pytest.mark.parametrize(("split", "books"), [("train", 151), ("val", 19), ("test", 17)])
def test_the_pairs_of_real_alignments_are_the_papers(split, books, tmp_path):
    path = DATA / "booksum" / f"book_summaries_aligned_{split}.jsonl"
    if not path.is_file():
        pytest.skip("no shared folder with BookSum's alignments beside the repository")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for name, text in ((row["book_path"], row["bid"]), (row["summary_path"], "A summary.")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    records = read("booksum-book", path, root=tmp_path)
    printed = SETS["booksum-book"].pairs["validation" if split == "val" else split]
    assert sum(len(record["summaries"]) for record in records) == printed
    assert len({record["id"] for record in records}) == books
    assert all(record["document"] == record["id"] for record in records)
