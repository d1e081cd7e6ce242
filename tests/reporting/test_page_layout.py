"""The pages at any width: nothing is wider than the page, no word in a table is broken."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.common.html import folded, markdown_table, to_html
from pipeline.reporting.paper.comparison_table import Spread, Table

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WORDS = ["LongT5-base", "ROUGE-1", "--train.max_steps", "preprocessing/documentation.py", "a–b"]
MEASURE = """<script>
const found = [], wide = document.documentElement;
if (wide.scrollWidth > wide.clientWidth) found.push("the page scrolls");
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; node = walk.nextNode();) {
  if (!node.parentElement.closest("td, th")) continue;
  for (const word of node.textContent.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) found.push(word[0]);
  }
}
document.title = JSON.stringify(found);
</script>"""


def page(folder: Path) -> str:
    cells = [*WORDS, " ".join(WORDS * 4), "1.00 (0.50 to 1.50)"]
    table = markdown_table([*WORDS, "a long header of words", "figure"], [cells], "l" * 6 + "r")
    return to_html("\n\n".join(["# A title", *folded("A line", [table]), table]), folder)


def test_tables_scroll_in_their_own_box_and_words_with_signs_stay_whole(tmp_path):
    text = page(tmp_path)
    assert len(re.findall(r'<div class="wide" tabindex="0">\n<table>', text)) == 2
    for word in WORDS:
        assert f'<span class="word">{word}</span>' in text
    assert "span" not in re.sub("<span.*?</span>", "", text.split("<body>")[1])
    assert text.count('<td class="text"') == 2  # the long cell alone may be broken into lines
    style = text.split("<style>")[1].split("</style>")[0]
    assert re.search(r"\.wide \{[^}]*overflow-x: auto", style)
    assert re.search(r"\.word \{[^}]*white-space: nowrap", style)
    assert re.search(r"img \{[^}]*max-width: 100%", style)


def test_a_table_without_figures_of_ours_is_folded_and_says_what_it_needs(tmp_path):
    theirs = {"LED": {"a": 1.0}}
    empty = "\n\n".join(
        Table({"a": ".1f"}, theirs, {}, title="Speed", needs="--systems FILE").headed()
    )
    assert "<summary>Speed: no figures of ours yet; needs --systems FILE</summary>" in empty
    text = to_html(f"# A title\n\n{empty}", tmp_path)
    inside = text.split("<details>")[1].split("</details>")[0]
    assert "<td>LED</td>" in re.sub(' style="[^"]*"', "", inside) and "markdown=" not in text
    filled = Table({"a": ".1f"}, theirs, {"LED": {"": {"a": 2.0}}}, title="Speed")
    assert "details" not in "".join(filled.markdown())


def test_a_cell_of_several_runs_has_its_spread_and_a_difference_no_signed_zero():
    ours = {"LED": {"": {"a": Spread(2.0, 1.5, 2.25), "b": 0.999}}}
    text = "".join(Table({"a": ".1f", "b": ".1f"}, {"LED": {"a": 1.0, "b": 1.0}}, ours).markdown())
    assert "| LED | ours | 2.0 (1.5 to 2.2) | 1.0 |" in text
    assert "| LED | difference | +1.0 | 0.0 |" in text


@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser_no_word_is_broken_and_the_page_does_not_scroll(tmp_path, width):
    """The page in a frame of that width, as a window is never narrower than 500 pixels."""
    text = page(tmp_path).replace("<details>", "<details open>")
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{MEASURE}</body>"))
    frame = f'<iframe src="page.html" width="{width}" height="800"></iframe>'
    show = "<script>onload = () => document.title = frames[0].document.title</script>"
    (tmp_path / "frame.html").write_text(frame + show)
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
         f"file://{tmp_path / 'frame.html'}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (found,) = re.findall("<title>(.*?)</title>", done.stdout)
    assert json.loads(found) == []
