"""Texts of a corpus: records in C4's format, or with a text under another name."""

from collections.abc import Iterator

from preprocessing.readers.entries import Entry, Item, Record, escaped, text_fault
from preprocessing.readers.fields import Fields, lookup
from preprocessing.readers.records import read_records

URLS = ("url", "metadata.url", "meta.url")  # C4 and FineWeb; Dolma; RedPajama


def read_c4(item: Item, split: str = "train", fields: Fields | None = None) -> Iterator[Entry]:
    """Entries of a file in C4's format; a record is {text, url}, the URL empty if there is none.

    `fields` are other names of text and url. Raises InputError as `read_records` does.
    """
    fields = fields or {}
    text_name = fields.get("text", "text")
    url_names = (fields["url"],) if "url" in fields else URLS
    for _, (number, record, position) in read_records(item, split):
        if not isinstance(record, str):
            text = lookup(record, text_name)
            record = text_fault(text) or {"text": text, "url": _url(record, url_names)}
        yield Entry(number, record, position)


def _url(record: Record, names: tuple[str, ...]) -> str:
    for name in names:
        if (url := lookup(record, name)) is not None:
            return escaped(url)
    return ""
