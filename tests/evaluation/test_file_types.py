"""Files that are no plain text: made by the programs' own libraries, refused with the way out."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pytest
from matplotlib.figure import Figure

from pipeline.inference.texts import read_text, text_of

TEXT = b"The river runs past an old stone mill.\n" * 9


def drawn(kind: str) -> bytes:
    file = io.BytesIO()
    Figure().savefig(file, format=kind)
    return file.getvalue()


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("book.txt")
        member.size = len(TEXT)
        archive.addfile(member, io.BytesIO(TEXT))
    return file.getvalue()


def zipped(**members: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (drawn("pdf"), "is a PDF, .*`pdftotext FILE book.txt`"),
        (drawn("ps"), "is PostScript, .*ps2ascii"),
        (drawn("png"), "is a PNG image, .*OCR"),
        (drawn("jpeg"), "is a JPEG image, .*OCR"),
        (drawn("tiff"), "is a TIFF image, .*OCR"),
        (gzip.compress(TEXT), "is gzip, .*`gunzip FILE`"),
        (bz2.compress(TEXT), "is bzip2, .*`bunzip2 FILE`"),
        (lzma.compress(TEXT), "is xz, .*`unxz FILE`"),
        (tar(), "is a tar archive, .*`tar -xf FILE`"),
        (zipped(**{"book.txt": "x"}), "is a zip archive; unpack it first: `unzip FILE`"),
        (
            zipped(**{"book.txt": "x"})[:-30],
            "is a damaged EPUB, Office document or zip archive; give",
        ),
        (
            zipped(**{"[Content_Types].xml": "", "word/document.xml": ""}),
            "is an Office document, .*soffice",
        ),
        (zipped(**{"mimetype": "", "content.xml": ""}), "is an Office document, .*soffice"),
        (rb"{\rtf1\ansi The river.}", "is RTF, .*soffice"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "is an older Office document"),
        (bytes(60) + b"BOOKMOBI" + bytes(99), "is a Kindle book, .*ebook-convert"),
        (b'<?xml version="1.0"?>\n<FictionBook><p>x</p></FictionBook>', "is XML, .*pandoc"),
        (json.dumps({"text": "The river."}, indent=1).encode(), "is JSON, .*jq"),
        (b'\n{"text": "The river."}\n{"text": "A mill."}\n', "is JSON, .*jq"),
        (b'[{"text": "The river."}]', "is JSON, .*jq"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # archives hold the time
)
def test_a_known_format_is_refused_with_the_command_that_converts_it(content, named, tmp_path):
    file = tmp_path / "book"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{file} {named}"):
        read_text(str(file))


@pytest.mark.parametrize(
    "text", ["[1] A note.\n", "{braces} in a text\n", "BZh is no mark\n", "<i>x</i> y\n", "PK\n"]
)
def test_texts_that_look_a_little_like_it_are_read(text):
    assert text_of(text.encode()) == (text, "UTF-8")
