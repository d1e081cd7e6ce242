"""Texts in many encodings, made by Python's codecs; Gutenberg's frames of all ages."""

from pathlib import Path

import pytest

from pipeline.inference.texts import decode, read_text, strip_gutenberg

BOOKS = Path(__file__).resolve().parents[2] / "../shared/data/books"
FRENCH = "Où l'élève naïf déjà mangea — « gâteau » — près de l'église, l'été.\n"
RUSSIAN = "Мельница стоит у реки, дети смотрят на цапель.\n"
TAIL = "the rest of this text is plain English and as long as a line or two of it.\n"
CHINESE = "磨坊在河边，孩子们看着苍鹭捕鱼。\n"


@pytest.mark.parametrize("text", [FRENCH, RUSSIAN, CHINESE, "plain\n"])
@pytest.mark.parametrize(
    ("codec", "description"),
    [
        ("utf-8", "UTF-8"),
        ("utf-8-sig", "UTF-8 by its mark"),
        ("utf-16", "UTF-16 by its mark"),
        ("utf-32", "UTF-32 by its mark"),
    ],
)
def test_unicode_is_recognised_by_its_mark_or_as_utf_8(text, codec, description):
    assert decode(text.encode(codec)) == (text, description)


def test_both_byte_orders():
    assert decode(b"\xfe\xff" + RUSSIAN.encode("utf-16-be"))[0] == RUSSIAN
    assert decode(b"\x00\x00\xfe\xff" + RUSSIAN.encode("utf-32-be"))[0] == RUSSIAN


def test_a_western_encoding_is_assumed_and_reported():
    text, description = decode(FRENCH.encode("cp1252"))
    assert text == FRENCH
    assert description == "cp1252 assumed (not UTF-8 at byte 1; --encoding names another)"


@pytest.mark.parametrize("codec", ["cp1251", "koi8-r", "gbk", "big5", "shift-jis", "euc-kr"])
def test_an_encoding_that_would_give_gibberish_is_refused(codec):
    text = {"cp1251": RUSSIAN, "koi8-r": RUSSIAN, "euc-kr": "방앗간은 강가에 있다."}
    content = text.get(codec, CHINESE).encode(codec, "ignore") * 9
    with pytest.raises(ValueError, match="--encoding"):
        decode(content)
    assert decode(content, codec) == (content.decode(codec), codec)


@pytest.mark.parametrize(
    ("codec", "text"),
    [("iso2022_jp", "川のそばの水車。"), ("iso2022_kr", "방앗간은 강가에 있다."), ("utf-7", FRENCH),
     ("hz", CHINESE)],
)  # fmt: skip
def test_seven_bit_encodings_are_refused_with_the_option_that_reads_them(codec, text):
    content = text.encode(codec) * 9
    content.decode("ascii")  # no wrong byte gives it away
    with pytest.raises(ValueError, match=f"--encoding.*{codec}"):
        decode(content)
    assert decode(content, codec) == (content.decode(codec), codec)


def test_ascii_with_their_marks_is_read():
    for text in ("C++ and A+B- give 1+1-2.\n", "~{ a brace ~}\n", "+AOk- is a letter; " * 2 + TAIL):
        assert decode(text.encode()) == (text, "UTF-8")


@pytest.mark.parametrize("name", ["windows-1251", "KOI8-R"])
def test_a_gutenberg_header_names_the_encoding(name):
    text = f"Title: X\r\n\r\nCharacter set encoding: {name}\r\n\r\n{RUSSIAN}"
    assert decode(text.encode(name)) == (text, f"{name}, as its header says")


@pytest.mark.parametrize("name", ["nonsense", "UTF-8", "ASCII", "hex"])
def test_a_wrong_header_is_ignored(name):
    text = f"Character set encoding: {name}\n{FRENCH}"
    assert decode(text.encode("cp1252"))[0] == text


def test_damaged_utf_8_is_read_as_utf_8_and_reported():
    content = bytearray((FRENCH * 20).encode())
    content[1] = 0xFF  # the first byte of the second character
    text, description = decode(bytes(content[:-9]))  # and cut within or between characters
    assert text.startswith("O\ufffd")
    assert text[10:1000] == (bytes(content[:-9]).decode(errors="replace"))[10:1000]
    assert description.startswith("UTF-8, damaged in ") and "byte 1" in description


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\0\0", "text".encode("utf-16-le")])
def test_binary_is_refused_with_a_remedy(content):
    with pytest.raises(ValueError, match=r"is binary.*--encoding utf-16-le"):
        decode(content)
    assert decode("text".encode("utf-16-le"), "utf-16-le")[0] == "text"


@pytest.mark.parametrize("content", [b"\xff\xfea", b"\xff\xfe\x00\xd8"])
def test_a_broken_utf_16_is_refused(content):
    with pytest.raises(ValueError, match="is not utf-16"):
        decode(content)


def test_the_encoding_given_must_fit():
    with pytest.raises(ValueError, match=r"is not ascii \(byte 1\)"):
        decode(FRENCH.encode(), "ascii")
    assert decode(FRENCH.encode("utf-8-sig"), "utf-8")[0] == FRENCH  # without the mark


FRAMES = [
    ("*** START OF THIS PROJECT GUTENBERG EBOOK MILLS ***", "*** END OF THIS PROJECT GUTENBERG"),
    ("***START OF THE PROJECT GUTENBERG EBOOK MILLS***", "***END OF THE PROJECT GUTENBERG EBOOK"),
    ("*** START OF THE PROJECT GUTENBERG EBOOK MILLS\nAND RIVERS ***",
     "End of the Project Gutenberg EBook of Mills\n\n*** END OF THE PROJECT GUTENBERG EBOOK"),
    ("*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
     "End of the Project Gutenberg Etext of Mills"),
    ("*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11/02*END*",
     "End of Project Gutenberg's Mills, by Miller"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "footer"), FRAMES)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_headers_and_footers_of_every_age(header, footer, newline):
    body = "*** The mill ***\n\nProject Gutenberg is not meant here.\n" * 2000  # 100,000 letters
    text = f"The Project Gutenberg EBook\n{header}\n{body}\n{footer}\nLicense\n"
    stripped, description = strip_gutenberg(text.replace("\n", newline))
    assert stripped == body.replace("\n", newline).strip()
    assert description == "Gutenberg header and footer removed"


def test_a_missing_header_or_footer_is_reported():
    assert strip_gutenberg("A text.") == ("A text.", "no Gutenberg header or footer found")
    half = f"{FRAMES[0][0]}\nA text."
    assert strip_gutenberg(half) == (
        "A text.",
        "Gutenberg header removed, no Gutenberg footer found",
    )


def test_a_real_book():
    if not BOOKS.is_dir():
        pytest.skip("no shared books next to the repository")
    text, description = read_text(str(BOOKS / "2701-0_moby_dick.txt"))
    assert description == "UTF-8 by its mark"
    book, removed = strip_gutenberg(text)
    assert removed == "Gutenberg header and footer removed"
    assert book.startswith("Produced by Daniel Lazarus")
    assert book.endswith("only found another orphan.")
