"""The summarisation sets of the paper, in the record formats in which they are distributed.

A parser turns one stored record into {id, document, summaries}. `summaries` may be empty; each one
is a text, a list of sentences where the format splits it, or None where it is withheld. Pairs of
one document share its id; where a record has none, a digest of the document is the id.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from preprocessing.readers.entries import (
    NO_ID,
    Entry,
    InputError,
    Item,
    Record,
    escaped,
    text_fault,
)
from preprocessing.readers.fields import Fields, renamed
from preprocessing.readers.records import read_records

Summary = str | list[str] | None
ReadText = Callable[[Any], str | None]
"""Returns the text of a file that a record names, None if there is no such file."""

SHOWN_KEYS = 12  # of a record in a message


@dataclass(frozen=True)
class Format:
    """A record format, identified by its keys."""

    keys: tuple[str, ...]
    parse: Callable[[Record, ReadText], Record]


@dataclass(frozen=True)
class SummarisationSet:
    """A set: its formats (most specific first), the paper's lengths in ids (0: no limit), its size.

    `pairs` are the paper's counts per split (table of data sets in the appendix); None: not a set
    of the paper.
    """

    formats: tuple[str, ...]
    source_length: int
    target_length: int
    pairs: dict[str, int] | None = None


class Texts:
    """The texts named by BookSum's alignment files, under one root."""

    def __init__(self, root: Path | None) -> None:
        self._root = root and root.resolve()

    def __call__(self, name: Any) -> str | None:
        """The text of a file, None if there is none. Raises ValueError if it is outside the root.

        Bytes that are not UTF-8 become lone surrogates, which later count as bad encoding.
        """
        if not isinstance(name, str) or not name:
            return None
        if self._root is None:
            raise InputError(
                "names other files, which are not looked for on a store; give --root FOLDER, where "
                "they are"
            )
        try:
            path = (self._root / name).resolve()
            is_file = path.is_file()
        except (ValueError, OSError):  # no name of a file: a zero byte, half a pair, too long
            return None
        if not path.is_relative_to(self._root):
            raise InputError(f"the path {name!r} leads out of --root {self._root}; correct --root")
        if not is_file:
            return None
        return path.read_bytes().decode("utf-8-sig", errors="surrogateescape")


def read_set(
    item: Item,
    dataset: str,
    split: str,
    form: str | None = None,
    root: Path | None = None,
    fields: Fields | None = None,
) -> Iterator[Entry]:
    """Entries of an item of a set; a record is {id, document, summaries}.

    `form` names one of FORMATS; None: identified by each record's keys. `root` is the folder of
    paths in records; None: the item's folder. `fields` are the records' own names of fields.
    Raises InputError on records of an unknown format.
    """
    beside = item.path.parent if isinstance(item.path, Path) else None
    read_text = Texts(root or beside)
    file, found = "", form
    for name, entry in read_records(item, split):
        if name != file:
            file, found = name, form
        if isinstance(entry.record, str):
            yield entry
            continue
        record = renamed(entry.record, fields) if fields else entry.record
        # Once a file's format is known, a record that lacks a key is broken, not of another format.
        found = form or _form_of(record, dataset) or found
        try:
            if found is None:
                raise InputError(_unknown(record, dataset))
            parsed = FORMATS[found].parse(record, read_text)
        except InputError as error:
            raise InputError(f"{name}: record {entry.number} {error}") from None
        yield entry._replace(record=_checked(parsed))


def _form_of(record: Record, dataset: str) -> str | None:
    for name in SETS[dataset].formats:
        if record.keys() >= set(FORMATS[name].keys):
            return name
    return None


def _unknown(record: Record, dataset: str) -> str:
    formats = (f"{name} ({', '.join(FORMATS[name].keys)})" for name in SETS[dataset].formats)
    shown_keys = (escaped(key) for key in islice(record, SHOWN_KEYS))
    keys = [key if key == key.strip() else repr(key) for key in shown_keys]
    more = ", ..." if len(record) > len(keys) else ""
    return (
        f"has the keys {', '.join(keys) or 'none'}{more}; the formats of {dataset} are "
        f"{'; '.join(formats)}; choose one with --format or convert the data to jsonl"
        + (", or give its names with --fields" if dataset == "jsonl" else "")
    )


def _checked(record: Record) -> Record | str:
    """The record with its id as text, or the reason for its exclusion."""
    reason = text_fault(record["document"])
    if reason:
        return reason
    if not isinstance(record["id"], (str, int)):
        return NO_ID
    return {**record, "id": escaped(record["id"])}


def _record(document: Any, summaries: list[Any], *ids: Any) -> Record:
    """A record whose id is the first of `ids` that is set, or a digest of the document."""
    if not isinstance(document, str):
        document = None
    digest = hashlib.sha256((document or "").encode(errors="replace")).hexdigest()[:16]
    name = next((name for name in ids if name not in (None, "")), digest)
    return {"id": name, "document": document, "summaries": summaries}


def _strings(value: Any) -> list[str]:
    """A text, or the texts of a list, without blank texts."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str) and text.strip()]


def _lines(texts: Iterable[str]) -> str | None:
    """The texts, one per line (a newline always ends a sentence); None if there are none."""
    return "\n".join(texts) or None


def _plain(record: Record, _: ReadText) -> Record:
    """jsonl and launch/gov_report: document, summary; a list holds alternative summaries."""
    summary = record.get("summary")
    summaries = summary if isinstance(summary, list) else [summary]
    return _record(record.get("document"), summaries, record.get("id"))


def _cohan(record: Record, _: ReadText) -> Record:
    """arXiv and PubMed as released: lists of tokenised sentences, the abstract with <S> </S>."""
    article = _strings(record.get("article_text")) or [
        text for section in record.get("sections") or [] for text in _strings(section)
    ]
    marked = (text.strip() for text in _strings(record.get("abstract_text")))
    sentences = [text.removeprefix("<S>").removesuffix("</S>").strip() for text in marked]
    kept = [text for text in sentences if text]
    return _record(_lines(article), [kept] if kept else [], record.get("article_id"))


def _article(record: Record, _: ReadText) -> Record:
    """arXiv and PubMed as exported: article, abstract, rarely an id."""
    return _record(record.get("article"), [record.get("abstract")], record.get("id"))


def _scrolls(record: Record, _: ReadText) -> Record:
    """SCROLLS, which withholds the output of its test splits."""
    return _record(record.get("input"), [record.get("output")], record.get("id"))


def _instructions(record: Record, _: ReadText) -> Record:
    """Instruction-tuning exports, as L-Eval's: input, outputs."""
    outputs = record.get("outputs")
    return _record(record.get("input"), outputs if isinstance(outputs, list) else [outputs])


def _crs(record: Record, _: ReadText) -> Record:
    """GovReport's reports of the Congressional Research Service: nested sections, paragraphs."""
    summary = _lines(_strings(record.get("summary")))
    return _record(_lines(_sections(record.get("reports"))), [summary], record.get("id"))


def _gao(record: Record, _: ReadText) -> Record:
    """GovReport's reports of the Government Accountability Office, summarised by their highlights.

    Without the highlight "What GAO Recommends", as in the authors' own export.
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
    """BookSum's alignments of a book with a summary, both given by path."""
    summary = _summary_file(read_text(record.get("summary_path")))
    return _record(
        read_text(record.get("book_path")), [summary], record.get("bid"), record.get("book_path")
    )


def _aligned_chapter(record: Record, read_text: ReadText) -> Record:
    """BookSum's alignments of a chapter with a summary, both given by path."""
    path = record.get("chapter_path")
    return _record(read_text(path), [_summary_file(read_text(record.get("summary_path")))], path)


def _exported_chapter(record: Record, _: ReadText) -> Record:
    """kmfoda/booksum: texts in the record; `summary` is the summary file's JSON."""
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
    """The text of a BookSum summary file: JSON, whatever its suffix, or plain text."""
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
        ("summscreen", "scrolls", "instructions"), 16384, 512, _pairs(3_673, 338, 337)
    ),
    "booksum-chapter": SummarisationSet(
        ("chapter", "chapter-alignment", "chapter-cleaned"), 8192, 512, _pairs(9_600, 1_484, 1_431)
    ),
    "booksum-book": SummarisationSet(
        ("book-alignment", "book-cleaned"), 0, 1024, _pairs(314, 45, 46)
    ),
    "jsonl": SummarisationSet(("jsonl",), 4096, 512),
}
