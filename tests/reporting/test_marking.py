"""Words that a summary takes from its document: which they are, and how a text marks them."""

from html.parser import HTMLParser

from pipeline.common.html import to_html
from pipeline.reporting.marking import beginning, content_words, find_use, mark, share


def shown(text: str, folder) -> tuple[str, list[str]]:
    """A paragraph as the page shows it, and its marked parts."""
    everything, marked, inside = [], [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            assert tag in ("p", "mark")
            inside.append(tag)

        def handle_endtag(self, tag):
            assert inside.pop() == tag

        def handle_data(self, data):
            everything.append(data)
            if inside[-1:] == ["mark"]:
                marked.append(data)

    Reader().feed(to_html(f"# T\n\n{text}", folder).split("</h1>")[1].split("</body>")[0])
    return "".join(everything).strip(), marked


def test_content_words_are_those_of_rouge_without_stop_words_code_words_and_single_characters():
    words = content_words("The x of read_file, READ-only: Sort 16 × naïve; returns None, self.x")
    assert words == {"read", "file", "sort", "16", "na", "ve"}


def test_words_of_both_documents_do_not_count():
    use = find_use(
        ["Sort the list", "Close a file", "Close the list"],
        ["sort list", "close file", "path file"],
        [1, 2, 0],
    )
    assert use.own == [{"sort", "list"}, {"close"}, set()]
    assert use.permuted == [set(), set(), {"list"}]
    assert share(use.own) == 100 * 2 / 3 and share(use.permuted) == 100 / 3


def test_marked_words_stand_in_the_page_as_marked(tmp_path):
    text = mark("Sorts the Sort, not sorted: sort_key", {"sort", "key"})
    assert text.count("<mark>") == 3
    assert shown(text, tmp_path) == (
        "Sorts the Sort, not sorted: sort_key",
        ["Sort", "sort", "key"],
    )


def test_any_text_shows_as_itself_with_words_marked_that_escapes_contain(tmp_path):
    wild = (
        r"amp & lt < b > gt *mark* _124_ | 126 ~~lt~~ \\mark `mark` [mark](amp) "
        "<mark>mark</mark> #amp"
    )
    text, marked = shown(mark(wild, {"amp", "lt", "124", "126", "mark"}), tmp_path)
    assert text == wild
    assert marked == "amp lt mark 124 126 lt mark mark mark amp mark mark mark amp".split()


def test_a_beginning_ends_with_a_word():
    assert beginning("one two\n three", 13) == "one two three"
    assert beginning("one two three", 12) == "one two …"
    assert beginning("one two three", 7) == "one two …"
    assert beginning("unbroken", 3) == "unb …"
