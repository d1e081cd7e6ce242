"""Every record format of every set, as released and as exported; unknown and broken records."""

import json

import pytest
from set_records import CHAPTER, COHAN, CRS, EPISODE, GAO, lines, read

CLEANED = [{"source": "x", "text": "One.", "analysis": ""}, {"source": "y", "text": "Two."}]
FORMATS = {
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
    "L-Eval": (
        "summscreenfd",
        {"instructions": ["Sum."], "outputs": ["S"], "input": "A b", "evaluation": "rouge"},
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
    ("dataset", "record", "name", "document", "summaries"), FORMATS.values(), ids=FORMATS
)
def test_each_format(dataset, record, name, document, summaries, tmp_path):
    expected = {"id": name, "document": document, "summaries": summaries}
    assert read(dataset, lines(tmp_path / "x.jsonl", record)) == [expected]


@pytest.fixture
def booksum(tmp_path):
    """BookSum's layout: texts, and summaries as JSON under both suffixes and as plain text."""
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
def test_a_path_outside_the_root_is_refused(name, booksum, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (booksum / "link.txt").symlink_to(secret)
    chosen = str(secret) if name == "absolute" else name
    with pytest.raises(ValueError, match="leads out of --root"):
        read("booksum-book", aligned(booksum, "summaries/c.txt", book=chosen))
    with pytest.raises(ValueError, match="leads out of --root"):
        read("booksum-book", aligned(booksum, chosen))


def test_an_unknown_format_is_refused_with_its_keys_and_those_expected(tmp_path):
    path = lines(tmp_path / "x.jsonl", {"text": "D", "label": 1})
    with pytest.raises(
        ValueError, match=r"record 1 has the keys text, label; the formats of arxiv are"
    ) as e:
        read("arxiv", path)
    assert "cohan (article_id, abstract_text); article-abstract (article, abstract)" in str(e.value)
    # With --format, or once the file's format is known, such a record counts as broken.
    assert read("arxiv", path, form="article-abstract") == ["no text"]
    good = {"article": "A", "abstract": "S"}
    both = lines(tmp_path / "y.jsonl", good, {"text": "D"})
    assert read("arxiv", both)[1] == "no text"


def test_broken_records_have_reasons(tmp_path):
    good = {"id": "a", "document": "D", "summary": "S"}
    changes = ({"id": [1]}, {"document": 3}, {"document": "\udc80"})
    path = lines(tmp_path / "x.jsonl", good, *({**good, **change} for change in changes))
    assert read("jsonl", path)[1:] == ["no id", "no text", "bad encoding"]


@pytest.mark.parametrize("missing", [{"id": None}, {"id": ""}, {}])
def test_a_record_without_an_id_gets_a_digest_of_its_document(missing, tmp_path):
    path = lines(tmp_path / "x.jsonl", {"document": "A b", "summary": "S", **missing})
    assert [record["id"] for record in read("jsonl", path)] == ["a760b0e1e5180903"]


def test_half_a_surrogate_pair_in_an_id_or_a_path_stops_nothing(tmp_path):
    good = {"document": "D", "summary": "S"}
    path = lines(tmp_path / "x.jsonl", *({**good, "id": f"a{half}"} for half in "\ud83d\ud83e"))
    assert [record["id"] for record in read("jsonl", path)] == ["a\\ud83d", "a\\ud83e"]
    for name in ("\ud83d", "a\0b", "a" * 5000):
        book = {"bid": "1", "title": "T", "book_path": name, "summary_path": name}
        assert read("booksum-book", lines(tmp_path / "y.jsonl", book)) == ["no text"]
