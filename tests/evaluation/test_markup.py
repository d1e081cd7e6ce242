"""The words of HTML pages and of EPUB books."""

import io
import zipfile

import pytest

from pipeline.inference import markup
from pipeline.inference.texts import read_text, text_of

PAGE = """<!DOCTYPE html>
<html><head><title>No title</title><style>p { color: red }</style></head>
<body><nav>Menu</nav><!-- no
comment --><script>if (a < b) alert("no script")</script>
<h1>The  Mill</h1><p>An <b>old</b> mi&shy;ll stands
by the river &amp; turns.</p>First<br>second<ul><li>one<li>two</ul>
<pre>kept
apart</pre></body></html>"""
WORDS = "The Mill\nAn old mill stands by the river & turns.\nFirst\nsecond\none\ntwo\nkept\napart"
CONTAINER = """<?xml version="1.0"?><container version="1.0"
 xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OEBPS/the%20book.opf" media-type="application/oebps-package+xml"/>
</rootfiles></container>"""
PACKAGE = """<?xml version="1.0"?><opf:package xmlns:opf="http://www.idpf.org/2007/opf"><opf:manifest>
<opf:item id="b" href="text/two.xhtml"/><opf:item id="a" href="text/one%C3%A9.xhtml"/>
<opf:item id="n" href="nav.xhtml" properties="nav"/><opf:item id="p" href="cover.jpeg"/>
</opf:manifest><opf:spine><opf:itemref idref="n"/><opf:itemref idref="a"/>
<opf:itemref idref="b"/></opf:spine></opf:package>"""


def page(words: str) -> str:
    return f'<?xml version="1.0"?><html xmlns="x"><body><p>{words}</p></body></html>'


MEMBERS = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": CONTAINER,
    "OEBPS/the book.opf": PACKAGE,
    "OEBPS/nav.xhtml": page("Contents"),
    "OEBPS/text/two.xhtml": page("The end."),
    "OEBPS/text/oneé.xhtml": page("L’été begins."),
}


def book(**changed: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**MEMBERS, **changed}.items():
            archive.writestr(name, text)
    return file.getvalue()


def damaged(content: bytes) -> bytes:
    """With other bytes in the compressed data of the first page that is read."""
    start = content.index("OEBPS/text/oneé.xhtml".encode()) + 30
    return content[:start] + b"\xff" * 9 + content[start + 9 :]


def test_a_page_gives_its_words_a_paragraph_a_line():
    assert text_of(PAGE.encode()) == (WORDS, "HTML, UTF-8")
    assert text_of(b"\xef\xbb\xbf" + PAGE.encode())[0] == WORDS
    assert text_of(b'<?xml version="1.0"?>\n<!-- x -->\n' + PAGE.encode())[0] == WORDS


def test_end_tags_may_be_omitted():
    page = "<!DOCTYPE html><title>T</title><head><meta charset=utf-8><body><p>One.\n<p>Two\nlines."
    assert text_of(page.encode())[0] == "One.\nTwo lines."
    assert text_of(page.replace("<head>", "").encode())[0] == "One.\nTwo lines."


def test_a_page_without_the_tags_that_tell_is_known_by_its_name(tmp_path):
    for name, words in (("part.HTM", "A mill & a <b>."), ("part.txt", "<p>A mill &amp; a &lt;b>.")):
        (tmp_path / name).write_text("<p>A mill &amp; a &lt;b>.")
        assert read_text(str(tmp_path / name))[0] == words


@pytest.mark.parametrize("codec", ["koi8-r", "shift-jis", "utf-16", "iso-2022-jp", "hz-gb-2312"])
def test_a_page_names_its_encoding(codec):
    words = {
        "koi8-r": "Мельница у реки.", "shift-jis": "川のそばの水車。", "utf-16": "L’été.",
        "iso-2022-jp": "川のそばの水車。", "hz-gb-2312": "河边的磨坊。",
    }[codec]  # fmt: skip
    text = f'<html><head><meta charset="{codec}"></head><body>{words}</body></html>'
    assert text_of(text.encode(codec))[0] == words


def test_a_book_is_read_in_the_order_of_its_spine_without_navigation():
    assert text_of(book()) == ("L’été begins.\nThe end.", "EPUB")


def test_pictures_in_the_spine_are_no_words_but_their_fallbacks_are():
    spine = PACKAGE.replace('idref="n"', 'idref="p"')
    picture = {"OEBPS/cover.jpeg": "\xff\xd8\xff picture"}
    for attributes, cover in (
        ('media-type="image/jpeg"', ""),
        ('media-type="image/jpeg" fallback="p"', ""),
        ('media-type="image/jpeg" fallback="b"', "The end.\n"),
    ):
        package = spine.replace('id="p"', f'id="p" {attributes}')
        content = book(**{"OEBPS/the book.opf": package}, **picture)
        assert text_of(content)[0] == f"{cover}L’été begins.\nThe end."


def test_deeply_nested_markup_is_read():
    text = "<html><body>" + "<div>" * 20_000 + "deep"
    assert text_of(text.encode())[0] == "deep"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (book(**{"OEBPS/the book.opf": "<package/>"}), "is an EPUB without pages"),
        (book(**{"META-INF/container.xml": "<container/>"}), "is a damaged EPUB"),
        (
            book(**{"OEBPS/the book.opf": PACKAGE.replace("two.xhtml", "../../../../etc/passwd")}),
            "is a damaged EPUB",
        ),
        (
            book(**{"META-INF/encryption.xml": '<e:CipherReference URI="OEBPS/text/two.xhtml"/>'}),
            "is an encrypted EPUB",
        ),
        (damaged(book()), "is a damaged EPUB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # archives hold the time
)
def test_a_book_that_cannot_be_read_is_refused(content, named):
    with pytest.raises(ValueError, match=named):
        text_of(content)


def test_a_book_too_large_for_memory_is_refused_before_it_is_unpacked(monkeypatch):
    monkeypatch.setattr(markup, "LARGEST_BOOK", 5_000)
    assert text_of(book())[0]
    with pytest.raises(ValueError, match="expected a book"):
        text_of(book(**{"OEBPS/text/two.xhtml": page("x" * 9_000)}))
    with pytest.raises(ValueError, match="too large, expected a book"):
        text_of(book(**{"OEBPS/the book.opf": PACKAGE + " " * 9_000}))
