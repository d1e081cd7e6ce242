"""Samples of the real sets, and the paper's counts."""

import json
from pathlib import Path

import pytest
from set_records import read

from preprocessing.readers.summarisation_sets import SETS

SHARED = Path(__file__).resolve().parents[2] / "../shared"
DATA = SHARED / "data"


def test_counts_are_the_papers():
    path = SHARED / "reference" / "paper_tables.json"
    if not path.is_file():
        pytest.skip("the shared folder with the paper's tables is not available")
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
        pytest.skip("the shared folder with samples of the sets is not available")
    records = read(dataset, path)
    assert len(records) == len({record["id"] for record in records}) == count
    for record in records:
        (summary,) = record["summaries"]
        text = "\n".join(summary) if isinstance(summary, list) else summary
        assert text and "<S>" not in text
        assert record["document"].strip()


@pytest.mark.parametrize(("split", "books"), [("train", 151), ("val", 19), ("test", 17)])
def test_the_real_alignments_have_the_papers_counts(split, books, tmp_path):
    path = DATA / "booksum" / f"book_summaries_aligned_{split}.jsonl"
    if not path.is_file():
        pytest.skip("the shared folder with BookSum's alignments is not available")
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
