"""Functions as documents of words, with their summaries."""

import pytest

from preprocessing.readers.functions import function_pairs, in_words, words
from preprocessing.readers.python_sources import Module, Pair, parse

SOURCE = '''"""A module of its own."""
class FileCache(Base):
    """Not a function."""

    @cached
    async def read_all(
        self, file_names: list[str], *, strict=True
    ) -> HTMLText:
        """Return what the files hold,
        one after the other.

        Missing ones
        are empty.
        """
        # The newest comes first.
        return "\\n".join(load(name) for name in file_names)

        def innerPart(x):
            """Do the inner part of it."""
            return x2y(x)


def says_it_again():
    """Says it again."""


def too_short():
    """Nothing."""

def undocumented(): return 1
'''


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("write_file", "write file"),
        ("RefactoringTool", "refactoring tool"),
        ("parseHTMLText", "parse html text"),
        ("_x2y_", "x 2 y"),
        ("__init__", "init"),
        ("größe_Ändern", "größe ändern"),
        ("_", ""),
    ],
)
def test_names_are_split_into_words(name, expected):
    assert words(name) == expected


def test_a_line_is_the_words_of_its_names():
    assert in_words("    return self.fileCache[key_name] + 17") == "return self file cache key name"


def pairs_of(path, source: str) -> list[Pair]:
    path.write_text(source, encoding="utf-8")
    module = Module(path, "p", "p.m")
    return function_pairs(module, parse(module))


def test_the_document_is_the_source_without_the_summary(tmp_path):
    outer, inner = pairs_of(tmp_path / "m.py", SOURCE)
    assert (outer.id, outer.package) == ("p.m.FileCache.read_all", "p")
    assert outer.summary == "Return what the files hold, one after the other."
    assert outer.document.splitlines() == [
        "file cache read all",
        "async def read all self file names list str strict true html text",
        "Missing ones are empty.",
        "the newest comes first",
        "return n join load name for name in file names",
        "def inner part x",
        "return x 2 y x",
    ]
    assert (inner.id, inner.summary) == (
        "p.m.FileCache.read_all.innerPart",
        "Do the inner part of it.",
    )
    assert inner.document == "inner part\ndef inner part x\nreturn x 2 y x"


def test_lines_are_numbered_as_python_numbers_them(tmp_path):
    """A form feed or a line separator inside a line ends it for str.splitlines, not for Python."""
    source = '"""M."""\nx = "\u2028"\n\x0c\ndef f(a_b):\n    """Give it back."""\n    return a_b\n'
    [pair] = pairs_of(tmp_path / "m.py", source)
    assert pair.document == "f\ndef f a b\nreturn a b"


def test_another_encoding_is_read(tmp_path):
    path = tmp_path / "m.py"
    text = '# coding: latin-1\ndef f():\n    """Say the word."""\n    return größe\n'
    path.write_bytes(text.encode("latin-1"))
    module = Module(path, "p", "p.m")
    [pair] = function_pairs(module, parse(module))
    assert pair.document.endswith("return größe")
