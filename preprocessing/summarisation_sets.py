"""The summarisation sets of the paper, in the forms in which they are handed around.

A parser turns one stored record into {id, document, summaries}. `summaries` may be empty; each one
is a text, a list of sentences where the form divides it itself, or None where it is withheld.
Pairs of one source share its id; where a form has no ids, a digest of the document serves.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preprocessing.containers import read_records
from preprocessing.corpora import NO_ID, Entry, Item, Record, text_fault

Summary = str | list[str] | None
ReadText = Callable[[Any], str | None]
"""Gives the text of a file that a record names, None if it is not there."""


@dataclass(frozen=True)
class Format:
    """A form of record, known by the keys it has."""

    keys: tuple[str, ...]
    parse: Callable[[Record, ReadText], Record]


@dataclass(frozen=True)
class SummarisationSet:
    """A set: its forms (most telling first), the paper's lengths in ids (0: never cut), its size.

    `pairs` are the paper's counts per split (table of data sets in the appendix); None: no set of
    the paper.
    """

    formats: tuple[str, ...]
    source_length: int
    target_length: int
    pairs: dict[str, int] | None = None


class Texts:
    """The texts that BookSum's alignment files name, below one root."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def __call__(self, name: Any) -> str | None:
        """The text of a file, None if there is none. Raises ValueError if it lies elsewhere.

        Bytes that are not UTF-8 become lone surrogates, which count as bad encoding later.
        """
        if not isinstance(name, str) or not name:
            return None
        path = (self._root / name).resolve()
        if not path.is_relative_to(self._root):
            raise ValueError(f"the path {name!r} leaves --root {self._root}; it is not read")
        if not path.is_file():
            return None
        return path.read_bytes().decode("utf-8-sig", errors="surrogateescape")


def read_set(
    item: Item, dataset: str, split: str, form: str | None = None, root: Path | None = None
) -> Iterator[Entry]:
    """Entries of an item of a set; a record is {id, document, summaries}.

    `form` names one of FORMATS; None: told by the keys of each record. `root` is where paths in
    records begin; None: beside the item. Raises ValueError on records of no form of the set.
    """
    read_text = Texts(root or item.path.parent)
    file, found = "", form
    for name, entry in read_records(item, split):
        if name != file:
            file, found = name, form
        if isinstance(entry.record, str):
            yield entry
            continue
        # A record that lacks a key is broken, not of another form, once its file's form is known.
        found = form or _form_of(entry.record, dataset) or found
        if found is None:
            raise ValueError(f"{name}: record {entry.number} {_unknown(entry.record, dataset)}")
        yield entry._replace(record=_checked(FORMATS[found].parse(entry.record, read_text)))


def _form_of(record: Record, dataset: str) -> str | None:
    for name in SETS[dataset].formats:
        if record.keys() >= set(FORMATS[name].keys):
            return name
    return None


def _unknown(record: Record, dataset: str) -> str:
    forms = (f"{name} ({', '.join(FORMATS[name].keys)})" for name in SETS[dataset].formats)
    return (
        f"has the keys {', '.join(map(str, record)) or 'none'}; {dataset} is known as "
        f"{'; '.join(forms)}; name one by --format or bring the data into the form of jsonl"
    )


def _checked(record: Record) -> Record | str:
    """The record with its id as text, or why it cannot be used."""
    reason = text_fault(record["document"])
    if reason:
        return reason
    if not isinstance(record["id"], (str, int)) or record["id"] == "":
        return NO_ID
    return {**record, "id": str(record["id"])}


def _record(document: Any, summaries: list[Any], *ids: Any) -> Record:
    """With the first of `ids` that is there, or a digest of the document."""
    if not isinstance(document, str):
        document = None
    digest = hashlib.sha256((document or "").encode(errors="replace")).hexdigest()[:16]
    name = next((name for name in ids if name not in (None, "")), digest)
    return {"id": name, "document": document, "summaries": summaries}


def _strings(value: Any) -> list[str]:
    """A text, or the texts of a list, without blank ones."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str) and text.strip()]


def _lines(texts: Iterable[str]) -> str | None:
    """The texts, one a line (a newline always ends a sentence); None for none at all."""
    return "\n".join(texts) or None


def _plain(record: Record, _: ReadText) -> Record:
    """Our own form and launch/gov_report: document, summary; a list holds alternatives."""
    summary = record.get("summary")
    summaries = summary if isinstance(summary, list) else [summary]
    return {"id": record.get("id"), "document": record.get("document"), "summaries": summaries}


def _cohan(record: Record, _: ReadText) -> Record:
    """arXiv and PubMed as released: lists of tokenised sentences, the abstract's in <S> </S>."""
    article = _strings(record.get("article_text")) or [
        text for section in record.get("sections") or [] for text in _strings(section)
    ]
    marked = (text.strip() for text in _strings(record.get("abstract_text")))
    sentences = [text.removeprefix("<S>").removesuffix("</S>").strip() for text in marked]
    kept = [text for text in sentences if text]
    return _record(_lines(article), [kept] if kept else [], record.get("article_id"))


def _article(record: Record, _: ReadText) -> Record:
    """arXiv and PubMed as exported: article, abstract, seldom an id."""
    return _record(record.get("article"), [record.get("abstract")], record.get("id"))


def _scrolls(record: Record, _: ReadText) -> Record:
    """SCROLLS; the output of its test splits is withheld."""
    return {
        "id": record.get("id"),
        "document": record.get("input"),
        "summaries": [record.get("output")],
    }


def _instructions(record: Record, _: ReadText) -> Record:
    """Instruction-tuning exports: input, outputs."""
    outputs = record.get("outputs")
    return _record(record.get("input"), outputs if isinstance(outputs, list) else [outputs])


def _crs(record: Record, _: ReadText) -> Record:
    """GovReport's reports of the Congressional Research Service: nested sections, paragraphs."""
    summary = _lines(_strings(record.get("summary")))
    return _record(_lines(_sections(record.get("reports"))), [summary], record.get("id"))


def _gao(record: Record, _: ReadText) -> Record:
    """GovReport's reports of the Government Accountability Office, with their highlights.

    Without the highlight "What GAO Recommends", which GovReport's own export leaves out too.
    """
    highlights = record.get("highlight")
    paragraphs = [
        text
        for section in (highlights if isinstance(highlights, list) else [])
        if isinstance(section, dict)
        and "recommend" not in str(section.get("section_title", "")).lower()
        for text in _strings(section.get("paragraphs"))
    ]
    return _record(_lines(_sections(record.get("report"))), [_lines(paragraphs)], record.get("id"))


def _sections(value: Any) -> Iterator[str]:
    """Titles and paragraphs of nested sections, in reading order."""
    for section in value if isinstance(value, list) else [value]:
        if isinstance(section, dict):
            yield from _strings(section.get("section_title"))
            yield from _strings(section.get("paragraphs"))
            yield from _sections(section.get("subsections") or [])


def _episode(record: Record, _: ReadText) -> Record:
    """SummScreen as released: lines of dialogue, a recap."""
    transcript = _lines(_strings(record.get("Transcript")))
    return _record(transcript, [_lines(_strings(record.get("Recap")))], record.get("filename"))


def _aligned_book(record: Record, read_text: ReadText) -> Record:
    """BookSum's alignment of a book with a summary, both by path."""
    summary = _summary_file(read_text(record.get("summary_path")))
    return _record(
        read_text(record.get("book_path")), [summary], record.get("bid"), record.get("book_path")
    )


def _aligned_chapter(record: Record, read_text: ReadText) -> Record:
    """BookSum's alignment of a chapter with a summary, both by path."""
    path = record.get("chapter_path")
    return _record(read_text(path), [_summary_file(read_text(record.get("summary_path")))], path)


def _exported_chapter(record: Record, _: ReadText) -> Record:
    """kmfoda/booksum: texts in the record; `summary` is the JSON of the summary's file."""
    summary = record.get("summary_text")
    if not _strings(summary):
        summary = _summary_file(record.get("summary"))
    return _record(record.get("chapter"), [summary], record.get("chapter_path"))


def _cleaned(record: Record, _: ReadText) -> Record:
    """ubaada/booksum-complete-cleaned: a text and a list of summaries from several sites."""
    summaries = record.get("summary")
    texts = [
        summary.get("text") if isinstance(summary, dict) else summary
        for summary in (summaries if isinstance(summaries, list) else [summaries])
    ]
    names = [str(record[key]) for key in ("bid", "chapter_id") if record.get(key) is not None]
    return _record(record.get("text"), texts, "/".join(names))


def _summary_file(content: Any) -> str | None:
    """The text of one of BookSum's summary files: JSON, whatever its suffix, or plain text."""
    if not isinstance(content, str):
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if isinstance(value, dict):
        value = value.get("summary")
    return _lines(_strings(value))


FORMATS = {
    "jsonl": Format(("document",), _plain),
    "cohan": Format(("article_id", "abstract_text"), _cohan),
    "article-abstract": Format(("article", "abstract"), _article),
    "scrolls": Format(("id", "input"), _scrolls),
    "instructions": Format(("instructions", "input", "outputs"), _instructions),
    "document-summary": Format(("id", "document", "summary"), _plain),
    "crs": Format(("reports", "summary"), _crs),
    "gao": Format(("report", "highlight"), _gao),
    "summscreen": Format(("Transcript",), _episode),
    "chapter": Format(("chapter",), _exported_chapter),
    "chapter-alignment": Format(("chapter_path", "summary_path"), _aligned_chapter),
    "chapter-cleaned": Format(("chapter_id", "text", "summary"), _cleaned),
    "book-alignment": Format(("book_path", "summary_path"), _aligned_book),
    "book-cleaned": Format(("bid", "title", "text", "summary"), _cleaned),
}


def _pairs(train: int, validation: int, test: int) -> dict[str, int]:
    return {"train": train, "validation": validation, "test": test}


SETS = {
    "arxiv": SummarisationSet(
        ("cohan", "article-abstract"), 4096, 512, _pairs(203_037, 6_436, 6_440)
    ),
    "pubmed": SummarisationSet(
        ("cohan", "article-abstract"), 4096, 512, _pairs(119_924, 6_633, 6_658)
    ),
    "govreport": SummarisationSet(
        ("crs", "gao", "document-summary", "scrolls", "instructions"),
        16384,
        1024,
        _pairs(17_457, 972, 973),
    ),
    "summscreenfd": SummarisationSet(
        ("summscreen", "scrolls"), 16384, 512, _pairs(3_673, 338, 337)
    ),
    "booksum-chapter": SummarisationSet(
        ("chapter", "chapter-alignment", "chapter-cleaned"), 8192, 512, _pairs(9_600, 1_484, 1_431)
    ),
    "booksum-book": SummarisationSet(
        ("book-alignment", "book-cleaned"), 0, 1024, _pairs(314, 45, 46)
    ),
    "jsonl": SummarisationSet(("jsonl",), 4096, 512),
}
