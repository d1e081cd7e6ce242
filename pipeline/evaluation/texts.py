"""Plain texts: which files, in which encoding, without Project Gutenberg's own words."""

import codecs
import re
import sys
from pathlib import Path

STANDARD_INPUT = "-"
MARKS = (  # UTF-32's before UTF-16's, which begins alike
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
FALLBACK = "cp1252"
"""What a text in no Unicode encoding is most often in: Western European, with Windows' quotes."""
FOREIGN_SHARE = 0.3
"""A text of which more is not ASCII is in no Western European language."""
DAMAGED_SHARE = 0.1
"""UTF-8 may be damaged at one character in so many of those that are not ASCII."""
DECLARED_WITHIN = 8192
"""Bytes in which a Gutenberg header names the encoding."""
NOTICE = 50_000
"""Characters in which a Gutenberg header ends, or a footer (with its license) begins."""

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


def text_files(name: str) -> list[str]:
    """All .txt files in and below a folder, in order; any other name itself."""
    if name == STANDARD_INPUT or not Path(name).is_dir():
        return [name]
    found = sorted(
        path
        for path in Path(name).rglob("*")
        if path.suffix.lower() == ".txt" and not path.name.startswith(".") and path.is_file()
    )
    return list(map(str, found)) or [name]


def read_text(name: str, encoding: str | None = None) -> tuple[str, str]:
    """The text of a file, or of standard input for `-`, and its encoding in words.

    Raises ValueError where it is no text, OSError where it cannot be read; see `decode`.
    """
    if name != STANDARD_INPUT and Path(name).is_dir():
        raise ValueError(f"{name} has no .txt files; give the files themselves")
    content = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
    try:
        text, found = decode(content, encoding)
        if not text.strip():
            raise ValueError("is empty, expected a text to summarise")
    except ValueError as error:
        shown = "standard input" if name == STANDARD_INPUT else name
        raise ValueError(f"{shown} {error}") from None
    return text, found


def decode(content: bytes, encoding: str | None = None) -> tuple[str, str]:
    """The text of the bytes and how it was read: in the given encoding, or in that of its byte
    order mark, in UTF-8, in what a Gutenberg header declares, in cp1252, the first that fits.

    Whatever is not certain is said. Raises ValueError, which goes on from the name of the file,
    where nothing fits.
    """
    if encoding is not None:
        return _strictly(content, encoding, "give the right --encoding, or none"), encoding
    for mark, codec, name in MARKS:
        if content.startswith(mark):
            return _strictly(content, codec, f"but begins as {name} does"), f"{name} by its mark"
    if b"\0" in content:
        raise ValueError(
            "is binary, expected plain text (UTF-16 without a byte order mark is read by "
            "--encoding utf-16-le or utf-16-be)"
        )
    bare = content.removeprefix(codecs.BOM_UTF8)
    name = "UTF-8" if bare is content else "UTF-8 by its mark"
    try:
        return bare.decode(), name
    except UnicodeDecodeError as error:
        fault = error.start + len(content) - len(bare)
    intact, mended = bare.decode(errors="ignore"), bare.decode(errors="replace")
    damaged = mended.count("\ufffd") - intact.count("\ufffd")
    if damaged <= DAMAGED_SHARE * _foreign(intact):
        return mended, f"{name}, damaged in {damaged} places (first at byte {fault})"
    if (text := _as_declared(content)) is not None:
        return text
    return _western(content, fault)


def strip_gutenberg(text: str) -> tuple[str, str]:
    """The text between Project Gutenberg's header and footer, and in words what was taken out."""
    headers = [found.end() for found in HEADER.finditer(text) if found.start() < NOTICE]
    begin = headers[-1] if headers else 0
    footers = (found.start() for found in FOOTER.finditer(text, begin))
    end = next((start for start in footers if start > len(text) - NOTICE), None)
    parts = {"header": bool(headers), "footer": end is not None}
    removed = " and ".join(part for part, found in parts.items() if found)
    absent = " or ".join(part for part, found in parts.items() if not found)
    said = [f"Gutenberg {removed} removed"] * bool(removed)
    said += [f"no Gutenberg {absent} found"] * bool(absent)
    return text[begin:end].strip(), ", ".join(said)


def _strictly(content: bytes, codec: str, remedy: str) -> str:
    try:
        return content.decode(codec).removeprefix("\ufeff")
    except UnicodeError as error:
        where = f" (byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        raise ValueError(f"is not {codec}{where}, {remedy}") from None


def _as_declared(content: bytes) -> tuple[str, str] | None:
    declared = DECLARATION.search(content[:DECLARED_WITHIN])
    if declared is None:
        return None
    name = declared[1].decode()
    try:
        return content.decode(name), f"{name}, as its header says"
    except (LookupError, UnicodeError):  # headers do err
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
            f"is not UTF-8 (byte {fault}), and no Western European text in {FALLBACK}; {remedy}"
        )
    return text, f"{FALLBACK} assumed (not UTF-8 at byte {fault}; --encoding names another)"


def _foreign(text: str) -> int:
    """Characters beyond ASCII."""
    return len(text) - len(text.encode("ascii", "ignore"))
