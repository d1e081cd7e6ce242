"""A report as Markdown and as one HTML page; texts escaped, absolute paths hidden."""

import base64
import html
import re
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
body {{ font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; overflow-wrap: break-word; }}
h1, h2, h3 {{ line-height: 1.25; }}
h2 {{ margin-top: 2.5rem; border-bottom: 1px solid #ddd; padding-bottom: .3rem; }}
h3 {{ font-size: 1rem; margin-top: 1.8rem; }}
img {{ max-width: 100%; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }}
th, td {{ padding: .35rem .8rem; border-bottom: 1px solid #e3e3e3; }}
@media (max-width: 40rem) {{ th, td {{ padding: .35rem .4rem; font-size: .88rem; }} }}
td[style*="right"] {{ white-space: nowrap; }}
th {{ border-bottom: 2px solid #999; }}
code {{ font-size: .88em; background: #f4f5f7; padding: .1em .3em; border-radius: 3px;
        overflow-wrap: anywhere; }}
mark {{ color: #222; background: #fff0a3; padding: 0 .15em; border-radius: 3px; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def write_page(sections: list[str], output: Path) -> None:
    """Write report.html, then report.md, into the folder of their pictures."""
    text = "\n\n".join(section.strip() for section in sections if section) + "\n"
    replace_text(output / "report.html", to_html(text, output))
    replace_text(output / "report.md", text)  # last: its presence means a complete report


def to_html(text: str, folder: Path) -> str:
    """The Markdown as one self-contained page, with the pictures of `folder` embedded."""
    body = markdown.markdown(text, extensions=["tables"])

    def embed(match: re.Match[str]) -> str:
        data = base64.b64encode((folder / match.group(1)).read_bytes()).decode()
        return f'src="data:image/png;base64,{data}"'

    title = html.escape(text.splitlines()[0].lstrip("# "))
    return PAGE.format(title=title, body=re.sub(r'src="([^"/]+\.png)"', embed, body))


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
