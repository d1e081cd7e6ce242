"""Texts of files: finding them, detecting encodings, removing Project Gutenberg's frame."""

import codecs
import re
import sys
from pathlib import Path

from pipeline.common.command_line import shown
from pipeline.inference.file_types import OFFICE, refuse_other_formats, refuse_records
from pipeline.inference.markup import (
    declared_encoding,
    epub_text,
    html_text,
    is_html,
    is_xml,
    zip_contents,
)

STANDARD_INPUT = "-"
HTML_SUFFIXES = (".html", ".htm", ".xhtml")
SUFFIXES = (".txt", *HTML_SUFFIXES, ".epub")
"""Files of a folder that are read."""
MARKS = (  # UTF-32 before UTF-16, whose marks are prefixes of it
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
FALLBACK = "cp1252"
"""The most common encoding of texts that are not Unicode: Western European, with Windows quotes."""
FOREIGN_SHARE = 0.3
"""A text with a larger non-ASCII share is not in a Western European language."""
DAMAGED_SHARE = 0.1
"""The largest share of damaged characters, among those beyond ASCII, still read as UTF-8."""
DECLARED_WITHIN = 8192
"""Bytes within which a Gutenberg header names the encoding."""
ZIP = b"PK\x03\x04"
ESCAPE = b"\x1b"
SEVEN_BIT = ("utf-7", "hz")
SEVEN_BIT_SHARE = 0.02
"""ASCII that has a larger share of other letters in such an encoding is in it."""
NOTICE = 50_000
"""Characters within which a Gutenberg header ends, or a footer (with its license) begins."""

DECLARATION = re.compile(rb"^Character set encoding:[ \t]*([\w.:-]+)", re.I | re.M)
HEADER = re.compile(
    r"^[ \t]*\*\*\*[ \t]*START OF (?:THE|THIS) PROJECT GUTENBERG[^*]{1,400}\*\*\*"
    r"|^[ \t]*\*END.{0,3}THE SMALL PRINT![^\n]*\*END\*",
    re.I | re.M,
)
FOOTER = re.compile(
    r"^[ \t]*(?:\*\*\*[ \t]*END OF (?:THE|THIS) PROJECT GUTENBERG"
    r"|(?:\*\*\*[ \t]*)?End of (?:the |this )?Project Gutenberg(?:['’]s| e-?(?:book|text)))",
    re.I | re.M,
)


def text_files(name: str) -> tuple[list[str], list[str]]:
    """Files to read in and below a folder, and those that are skipped; any other name itself.

    Sorted; hidden files and folders count as neither. A folder without texts is itself read, which
    says so.
    """
    folder = Path(name)
    if name == STANDARD_INPUT or not folder.is_dir():
        return [name], []
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(x.startswith(".") for x in path.relative_to(folder).parts)
    )
    read = [str(path) for path in files if path.suffix.lower() in SUFFIXES]
    return read or [name], [str(path) for path in files if path.suffix.lower() not in SUFFIXES]


def read_text(name: str, encoding: str | None = None) -> tuple[str, str]:
    """The text of a file, or of standard input for `-`, and a description of its encoding.

    HTML and EPUB lose their markup. Raises ValueError where it is none of these, OSError where it
    cannot be read; see `decode`.
    """
    if name != STANDARD_INPUT and Path(name).is_dir():
        raise ValueError(
            f"{shown(name)} has no texts ({', '.join(SUFFIXES)}); give the files themselves"
        )
    content = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
    try:
        text, found = text_of(content, encoding, Path(name).suffix.lower() in HTML_SUFFIXES)
        if not text.strip():
            raise ValueError("is empty, expected a text to summarise")
    except ValueError as error:
        raise ValueError(f"{shown_name(name)} {error}") from None
    return text, found


def shown_name(name: str) -> str:
    """A file's name as it is printed."""
    return "standard input" if name == STANDARD_INPUT else shown(name)


def text_of(
    content: bytes, encoding: str | None = None, named_html: bool = False
) -> tuple[str, str]:
    """The text of a file's bytes and a description of how it was read.

    `named_html`: the file's name says that it is HTML, which may be without the tags that tell.
    Raises ValueError, worded to follow the file's name, where they are no text, HTML or EPUB.
    """
    refuse_other_formats(content)
    if content.startswith(ZIP):
        kind = zip_contents(content)
        if kind == "epub":
            return epub_text(content), "EPUB"
        if kind == "office":
            raise ValueError(f"is an Office document, expected plain text, HTML or EPUB; {OFFICE}")
        if kind == "damaged":
            raise ValueError(
                "is a damaged EPUB, Office document or zip archive; give an intact file"
            )
        raise ValueError("is a zip archive; unpack it first: `unzip FILE`")
    text, found = decode(content, encoding, declared_encoding(content))
    refuse_records(text)
    if is_html(text) or (named_html and not is_xml(text)):
        return html_text(text), f"HTML, {found}"
    if is_xml(text):
        raise ValueError(
            "is XML, expected plain text, HTML or EPUB; convert it, e.g. "
            "`pandoc --from fb2|docbook|jats --to plain --output book.txt FILE`"
        )
    return text, found


def decode(
    content: bytes, encoding: str | None = None, declared: str | None = None
) -> tuple[str, str]:
    """The text of the bytes and a description of its encoding.

    That is the given one, or the first that fits of: its byte order mark's, a `declared` one of 7
    bits, UTF-8, the `declared` one or else that of a Gutenberg header, cp1252. The description says
    where this is a guess. Raises ValueError, worded to follow the file's name, where none fits.
    """
    if encoding is not None:
        return _strictly(content, encoding, "give the right --encoding, or none"), encoding
    for mark, codec, name in MARKS:
        if content.startswith(mark):
            remedy = f"but starts with the byte order mark of {name}"
            return _strictly(content, codec, remedy), f"{name} by its mark"
    if b"\0" in content:
        raise ValueError(
            "is binary, expected plain text (for UTF-16 without a byte order mark give "
            "--encoding utf-16-le or utf-16-be)"
        )
    if _is_seven_bit(declared) and (text := _as_declared(content, declared)) is not None:
        return text
    _refuse_seven_bit(content)
    bare = content.removeprefix(codecs.BOM_UTF8)
    name = "UTF-8" if bare is content else "UTF-8 by its mark"
    try:
        return bare.decode(), name
    except UnicodeDecodeError as error:
        fault = error.start + len(content) - len(bare)
    intact, repaired = bare.decode(errors="ignore"), bare.decode(errors="replace")
    damaged = repaired.count("\ufffd") - intact.count("\ufffd")
    if damaged <= DAMAGED_SHARE * _foreign(intact):
        return repaired, f"{name}, damaged in {damaged} places (first at byte {fault})"
    if (text := _as_declared(content, declared)) is not None:
        return text
    return _western(content, fault)


def strip_gutenberg(text: str) -> tuple[str, str]:
    """The text between Project Gutenberg's header and footer, and a description of the removal."""
    headers = [found.end() for found in HEADER.finditer(text) if found.start() < NOTICE]
    begin = headers[-1] if headers else 0
    footers = (found.start() for found in FOOTER.finditer(text, begin))
    end = next((start for start in footers if start > len(text) - NOTICE), None)
    parts = {"header": bool(headers), "footer": end is not None}
    removed = " and ".join(part for part, found in parts.items() if found)
    absent = " or ".join(part for part, found in parts.items() if not found)
    report = [f"Gutenberg {removed} removed"] * bool(removed)
    report += [f"no Gutenberg {absent} found"] * bool(absent)
    return text[begin:end].strip(), ", ".join(report)


def _strictly(content: bytes, codec: str, remedy: str) -> str:
    try:
        return content.decode(codec).removeprefix("\ufeff")
    except UnicodeError as error:
        where = f" (byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        raise ValueError(f"is not {codec}{where}, {remedy}") from None


def _refuse_seven_bit(content: bytes) -> None:
    """Raise ValueError for text in ISO-2022, HZ or UTF-7, which is valid ASCII of other letters."""
    if ESCAPE in content:
        raise ValueError(
            f"has escape characters (byte {content.index(ESCAPE)}), as texts in ISO-2022 do; give "
            "their --encoding, e.g. iso2022_jp, iso2022_kr"
        )
    if not content.isascii():
        return
    for codec in SEVEN_BIT:
        try:
            text = content.decode(codec)
        except UnicodeError:
            continue
        letters = sum(letter.isalpha() and not letter.isascii() for letter in text)
        if letters > SEVEN_BIT_SHARE * len(text):
            raise ValueError(f"is ASCII, but reads as {codec}; give --encoding {codec}, or ascii")


def _is_seven_bit(name: str | None) -> bool:
    """Whether an encoding is ISO-2022, HZ or UTF-7."""
    try:
        codec = codecs.lookup(name or "").name
    except LookupError:
        return False
    return codec in SEVEN_BIT or codec.startswith("iso2022")


def _as_declared(content: bytes, declared: str | None) -> tuple[str, str] | None:
    header = DECLARATION.search(content[:DECLARED_WITHIN])
    name = declared or (header[1].decode() if header else None)
    if name is None:
        return None
    try:
        return content.decode(name), f"{name}, as its header says"
    except (LookupError, UnicodeError):  # headers can be wrong
        return None


def _western(content: bytes, fault: int) -> tuple[str, str]:
    remedy = "name its encoding, e.g. --encoding cp1251"
    try:
        text = content.decode(FALLBACK)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"is not UTF-8 (byte {fault}) nor {FALLBACK} (byte {error.start}); {remedy}"
        ) from None
    if _foreign(text) > FOREIGN_SHARE * len("".join(text.split())):
        raise ValueError(
            f"is not UTF-8 (byte {fault}), and not Western European text in {FALLBACK}; {remedy}"
        )
    return text, f"{FALLBACK} assumed (not UTF-8 at byte {fault}; --encoding names another)"


def _foreign(text: str) -> int:
    """The number of characters beyond ASCII."""
    return len(text) - len(text.encode("ascii", "ignore"))
