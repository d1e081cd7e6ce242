"""Reading records of a set, and records in several formats, for the tests of sets and archives."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from made_up_text import write_lines

from preprocessing.readers.entries import Folder, Item
from preprocessing.readers.summarisation_sets import read_set


def read(dataset: str, path: Path, split: str = "train", **options: Any) -> list[Any]:
    """The records of a file or folder of a set, or the reasons for their exclusion."""
    item = Folder(path) if path.is_dir() else Item(path)
    return [entry.record for entry in read_set(item, dataset, split, **options)]


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Fail where Python takes more bytes at once than `limit`."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def lines(path: Path, *records: dict) -> Path:
    """Write records as JSON lines."""
    return write_lines(path, [json.dumps(record) for record in records])


def section(title: str, *paragraphs: str, below: Any = ()) -> dict[str, Any]:
    """A section of a report of GovReport."""
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
