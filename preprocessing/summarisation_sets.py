"""Readers of summarisation sets."""

from collections.abc import Iterator

from preprocessing.corpora import BAD_ENCODING, NO_ID, NO_SUMMARY, Entry, Item, read_json_lines
from preprocessing.corpora import text_fault as _text_fault


def read_pairs(item: Item) -> Iterator[Entry]:
    """Entries of JSON lines {id, document, summary}; a record is {id, document, summaries}.

    `summary` is a text or a list of alternative texts, of which the empty ones are left out.
    """
    for number, record, position in read_json_lines(item):
        if not isinstance(record, str):
            summary = record.get("summary")
            summaries = [
                text for text in (summary if isinstance(summary, list) else [summary]) if text
            ]
            faults = [_text_fault(text) for text in summaries]
            kept = [text for text, fault in zip(summaries, faults, strict=True) if not fault]
            if BAD_ENCODING in faults:
                record = BAD_ENCODING
            elif reason := _text_fault(record.get("document")):
                record = reason
            elif record.get("id") is None:
                record = NO_ID
            elif not kept:
                record = NO_SUMMARY
            else:
                identity, document = str(record["id"]), record["document"]
                record = {"id": identity, "document": document, "summaries": kept}
        yield Entry(number, record, position)
