"""Files that are no plain text, known by their first bytes: refused, with the way to a text."""

import json
from dataclasses import dataclass

OCR = "read its words with OCR, e.g. `tesseract FILE book`"
OFFICE = "convert it: `soffice --headless --convert-to txt:Text FILE`"
UNPACK = "unpack it first: "


@dataclass(frozen=True)
class FileType:
    """A format, and how to make a text of it."""

    name: str
    remedy: str
    marks: tuple[bytes, ...]
    """What its files begin with, after `offset` bytes."""
    offset: int = 0

    def fits(self, content: bytes) -> bool:
        """Whether the content begins as this format does."""
        return content.startswith(self.marks, self.offset)


FILE_TYPES = (
    FileType("a PDF", "convert it: `pdftotext FILE book.txt`", (b"%PDF-",)),
    FileType("PostScript", "convert it: `ps2ascii FILE book.txt`", (b"%!PS",)),
    FileType("RTF", OFFICE, (b"{\\rtf",)),
    FileType("an older Office document", OFFICE, (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",)),
    FileType(
        "a Kindle book", "convert it: `ebook-convert FILE book.epub`",
        (b"BOOKMOBI", b"TEXtREAd"), 60,
    ),
    FileType("a DjVu document", "convert it: `djvutxt FILE book.txt`", (b"AT&TFORM",)),
    FileType("gzip", UNPACK + "`gunzip FILE`", (b"\x1f\x8b",)),
    FileType("bzip2", UNPACK + "`bunzip2 FILE`", tuple(b"BZh%d1AY&SY" % k for k in range(1, 10))),
    FileType("xz", UNPACK + "`unxz FILE`", (b"\xfd7zXZ\0",)),
    FileType("Zstandard", UNPACK + "`unzstd FILE`", (b"\x28\xb5\x2f\xfd",)),
    FileType("a 7-Zip archive", UNPACK + "`7z x FILE`", (b"7z\xbc\xaf\x27\x1c",)),
    FileType("a RAR archive", UNPACK + "`unrar x FILE`", (b"Rar!\x1a\x07",)),
    FileType("a tar archive", UNPACK + "`tar -xf FILE`", (b"ustar",), 257),
    FileType("a PNG image", OCR, (b"\x89PNG\r\n",)),
    FileType("a JPEG image", OCR, (b"\xff\xd8\xff",)),
    FileType("a GIF image", OCR, (b"GIF87a", b"GIF89a")),
    FileType("a TIFF image", OCR, (b"II*\0", b"MM\0*")),
    FileType("a WebP image", OCR, (b"WEBP",), 8),
)  # fmt: skip


def refuse_other_formats(content: bytes) -> None:
    """Raise ValueError, worded to follow the file's name, for a known format that is no text."""
    for kind in FILE_TYPES:
        if kind.fits(content):
            raise ValueError(f"is {kind.name}, expected plain text, HTML or EPUB; {kind.remedy}")


def refuse_records(text: str) -> None:
    """Raise ValueError where the text is JSON or JSON lines: its syntax would be summarised."""
    start = text.lstrip("\ufeff \t\r\n")
    if not start.startswith(("{", "[")):
        return
    for part in (start, start.partition("\n")[0]):
        try:
            value = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) or (
            isinstance(value, list) and value and isinstance(value[0], dict)
        ):
            raise ValueError(
                "is JSON, expected one plain text; write each text into a file of its own, e.g. "
                "with `jq -r .text FILE`, or evaluate a dataset with evaluate.py"
            )
