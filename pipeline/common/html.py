"""A report as Markdown and as one HTML page; texts escaped, absolute paths hidden."""

import base64
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import markdown

from pipeline.common.files import replace_text
from pipeline.common.paths import ROOT

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
</body>
</html>
"""
STYLE = (Path(__file__).with_name("page.css")).read_text(encoding="utf-8").strip()
LONG_CELL = re.compile("<td([^>]*)>(?=(?:<code>)?[^<]{32})")
"""Cells of so many characters that they may be broken into lines."""
BREAKS = re.compile(r"\S*[-/–](?=\w)\S*")
"""Words that a browser may break at a hyphen or a slash inside them."""


def write_page(sections: list[str], output: Path) -> None:
    """Write report.html, then report.md, into the folder of their pictures."""
    text = "\n\n".join(section.strip() for section in sections if section) + "\n"
    replace_text(output / "report.html", to_html(text, output))
    replace_text(output / "report.md", text)  # last: its presence means a complete report


def to_html(text: str, folder: Path) -> str:
    """The Markdown as one self-contained page, with the pictures of `folder` embedded.

    A table wider than the page scrolls in a box of its own, and no word in it is broken.
    """
    body = markdown.markdown(text, extensions=["tables", "md_in_html"])

    def embed(match: re.Match[str]) -> str:
        data = base64.b64encode((folder / match.group(1)).read_bytes()).decode()
        return f'src="data:image/png;base64,{data}"'

    body = re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", body)
    body = re.sub("<table>.*?</table>", lambda match: _boxed(match.group()), body, flags=re.DOTALL)
    title = html.escape(text.splitlines()[0].lstrip("# "))
    return PAGE.format(title=title, style=STYLE, body=re.sub(r'src="([^"/]+\.png)"', embed, body))


def _boxed(table: str) -> str:
    """A table in a box that scrolls; a keyboard reaches it."""
    table = LONG_CELL.sub(r'<td class="text"\1>', table)
    whole = re.sub(
        "(?<=>)[^<>]+(?=<)",
        lambda text: BREAKS.sub(r'<span class="word">\g<0></span>', text.group()),
        table,
    )
    return f'<div class="wide" tabindex="0">\n{whole}\n</div>'


def refreshed(page: str, name: str, text: str) -> str:
    """The page with `text` between its lines <!-- NAME: begin --> and <!-- NAME: end -->.

    Raises ValueError without these two lines.
    """
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page needs one line {begin} and, below it, one line {end}")
    before, after = page.split(begin)[0], page.split(end)[1]
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def folded(line: str, paragraphs: Iterable[str]) -> Iterator[str]:
    """Paragraphs of Markdown behind one line, which unfolds them."""
    yield f'<details markdown="1">\n<summary>{line}</summary>'
    yield from paragraphs
    yield "</details>"


def escape(text: str) -> str:
    """Any text on one line, with Markdown and HTML special characters escaped."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]#])", r"\\\1", plain).replace("|", "&#124;").replace("~", "&#126;")


def hide_paths(text: str) -> str:
    """Absolute paths made relative to the repository; outside it, only their last part."""

    def shorten(match: re.Match[str]) -> str:
        path = Path(match.group())
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name

    return re.sub(r"(?<![\w.~/-])(?:/[^\s/'\":,]+)+", shorten, text)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows under a header; `align` has one letter a column: l (left) or r (right)."""
    rule = [":--" if side == "l" else "--:" for side in align]
    lines = [header, rule, *([cell.replace("|", "&#124;") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
