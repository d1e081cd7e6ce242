"""The text of HTML pages and EPUB books, read with Beautiful Soup."""

import io
import posixpath
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from bs4 import BeautifulSoup, CData, NavigableString, Tag, XMLParsedAsHTMLWarning
from bs4.dammit import EncodingDetector
from bs4.element import PageElement

from pipeline.common.units import GIB

# Beautiful Soup's only parser that needs no other package reads XHTML as well.
warnings.filterwarnings("ignore", category=XMLParsedAsHTMLWarning)

HTML = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)[\s>]", re.I | re.S
)
XML = re.compile(r"\s*<\?xml\s")
SOFT_HYPHEN = "\xad"
SEEN = 4096
"""Characters within which a page or an XML document shows that it is one."""
UNREAD = ("title", "script", "style", "template", "noscript", "svg", "math", "nav")
"""Not "head": its end tag may be omitted, and then the parser puts the whole page into it."""
PARAGRAPHS = (
    "address article aside blockquote caption dd details div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hr li main ol p pre section table td th tr ul"
).split()
NO_WORDS = ("image/", "audio/", "video/")
"""What the media types of a book's files without words begin with."""
LARGEST_BOOK = GIB // 4
"""Bytes of pages, unpacked: no real book has as many, an archive made to exhaust memory has."""
ENCRYPTED = "is an encrypted EPUB; give one without copy protection"
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeError)


def is_html(text: str) -> bool:
    """Whether the text begins as an HTML or XHTML page does."""
    return HTML.match(text[:SEEN]) is not None


def is_xml(text: str) -> bool:
    """Whether the text begins with an XML declaration."""
    return XML.match(text[:SEEN]) is not None


def declared_encoding(content: bytes) -> str | None:
    """The encoding that a page names, if any."""
    return EncodingDetector.find_declared_encoding(content, is_html=True)


def html_text(page: str | bytes) -> str:
    """The words of a page, one paragraph a line; no title, scripts, styles or navigation."""
    soup = BeautifulSoup(page, "html.parser")
    words = "".join(_strings(soup)).replace(SOFT_HYPHEN, "")
    return "\n".join(filter(None, (" ".join(line.split()) for line in words.split("\n"))))


def _strings(page: BeautifulSoup) -> Iterator[str]:
    """The strings of a page, in order; line ends are those that its markup means.

    Linear in the page, however deeply nested: paragraphs whose end tags are omitted are parsed as
    one within the other.
    """
    waiting: list[tuple[PageElement | str, bool]] = [(page, False)]
    while waiting:
        node, as_written = waiting.pop()
        if isinstance(node, Tag):
            if node.name in UNREAD:
                continue
            inner = as_written or node.name == "pre"
            end = [("\n", True)] if node.name in (*PARAGRAPHS, "br") else []
            waiting += [*end, *((child, inner) for child in reversed(node.contents)), *end]
        elif type(node) in (str, NavigableString, CData):  # not comments, declarations, ruby
            yield str(node) if as_written else " ".join(str(node).split("\n"))


def zip_contents(content: bytes) -> str:
    """What a zip archive is: "epub", "office", "zip" or "damaged"."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = set(archive.namelist())
    except DAMAGED:
        return "damaged"
    if "META-INF/container.xml" in names:
        return "epub"
    office = {"[Content_Types].xml", "content.xml"}
    return "office" if names & office else "zip"


def epub_text(content: bytes) -> str:
    """The pages of a book in reading order, without its navigation page.

    Raises ValueError, worded to follow the file's name, where it is damaged, encrypted, or larger
    than LARGEST_BOOK.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return "\n".join(filter(None, map(html_text, _pages(archive))))
    except (*DAMAGED, LookupError) as error:
        raise ValueError(f"is a damaged EPUB ({error}); give an intact file") from None
    except RuntimeError:  # what zipfile raises where a password is needed
        raise ValueError(ENCRYPTED) from None


def _pages(archive: zipfile.ZipFile) -> Iterator[bytes]:
    """The pages' bytes, in the order of the package's spine."""
    container = _parse(archive, "META-INF/container.xml")
    package = unquote(str(_tags(container, "rootfile")[0]["full-path"]))
    book = _parse(archive, package)
    items = {str(item["id"]): item for item in _tags(book, "item") if item.has_attr("id")}
    names = []
    for reference in _tags(book, "itemref"):
        item = _with_words(items, str(reference["idref"]))
        if item is not None and "nav" not in str(item.get("properties", "")).split():
            path = posixpath.join(posixpath.dirname(package), unquote(str(item["href"])))
            names.append(posixpath.normpath(path))
    if not names:
        raise ValueError("is an EPUB without pages; give an intact file")
    if set(names) & _encrypted(archive):
        raise ValueError(ENCRYPTED)
    size = sum(archive.getinfo(name).file_size for name in names)
    if size > LARGEST_BOOK:
        raise ValueError(f"is an EPUB whose pages take {size / GIB:.1f} GiB, expected a book")
    return map(archive.read, names)


def _with_words(items: Mapping[str, Tag], name: str) -> Tag | None:
    """The item of that name, or the first of its fallbacks that has words, if any."""
    item = items[name]
    for _ in items:  # no more often, as fallbacks can form a circle
        if not str(item.get("media-type", "")).startswith(NO_WORDS):
            return item
        if not item.has_attr("fallback"):
            return None
        item = items[str(item["fallback"])]
    return None


def _encrypted(archive: zipfile.ZipFile) -> set[str]:
    name = "META-INF/encryption.xml"
    if name not in archive.namelist():
        return set()
    return {unquote(str(tag["uri"])) for tag in _tags(_parse(archive, name), "cipherreference")}


def _parse(archive: zipfile.ZipFile, name: str) -> BeautifulSoup:
    if archive.getinfo(name).file_size > LARGEST_BOOK:
        raise ValueError(f"is an EPUB whose {name} is too large, expected a book")
    return BeautifulSoup(archive.read(name), "html.parser")


def _tags(soup: BeautifulSoup, name: str) -> list[Tag]:
    """All tags of that local name, in lower case, whatever their prefix."""
    return soup.find_all(lambda tag: tag.name.rpartition(":")[2] == name)
