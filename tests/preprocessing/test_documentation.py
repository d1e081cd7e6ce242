"""The documentation corpus: its sources, its splits, and that nothing leaks between them."""

import ast
import gzip
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_text import tree

from pipeline.shards import Dataset
from pipeline.tokenizer import Tokenizer
from preprocessing import documentation as documentation_command
from preprocessing import pretrain
from preprocessing import tokenizer as tokenizer_command
from preprocessing.dataset.documentation_corpus import (
    leaked,
    passages,
    split_packages,
    without_duplicates,
)
from preprocessing.documentation import REQUIREMENTS
from preprocessing.readers.documented_modules import read_module
from preprocessing.readers.python_sources import (
    Module,
    Pair,
    docstrings,
    find_modules,
    parse,
    required_distributions,
    unwrap,
)
from preprocessing.readers.whole_sources import leading_prose, whole_pairs

ROOT = Path(__file__).resolve().parents[2]
LONG = "It continues, word after word after word. " * 20
LIMIT_FILES = 600


def test_docstrings_are_those_python_shows(tmp_path):
    import textwrap

    module = Module(Path(textwrap.__file__), "textwrap", "textwrap")
    found = dict(docstrings(module, parse(module)))
    assert found["textwrap"] == inspect.getdoc(textwrap)
    assert found["textwrap.TextWrapper"] == inspect.getdoc(textwrap.TextWrapper)
    assert found["textwrap.TextWrapper.fill"] == inspect.getdoc(textwrap.TextWrapper.fill)
    assert found["textwrap.dedent"] == inspect.getdoc(textwrap.dedent)


def test_files_of_another_python_are_skipped(tmp_path):
    path = tmp_path / "x.py"
    path.write_text('"""Text."""\nthis is no python')
    module = Module(path, "x", "x")
    assert parse(module) is None and docstrings(module, None) == []
    path.write_bytes(b'"""Half a pair: \\ud800."""\nx = "\\d"\n')
    assert docstrings(module, parse(module)) == [("x", "Half a pair: .")]


def test_topics_are_texts_of_their_own():
    import pydoc_data.topics

    path = Path(pydoc_data.topics.__file__)
    read = read_module(Module(path, "pydoc_data", "pydoc_data.topics"))
    names = {f"topics/{name}" for name in pydoc_data.topics.topics}
    assert {url for url, _ in read.texts} == names
    assert read.pairs == read.parts == []


def test_unwrap_joins_paragraphs_only():
    text = """Return the value, which is
    a number.

    Parameters
    ----------
    x : int
        The first
        number.
    y : int
        The second.

    - one item
    - another

    >>> f(1)
    2
    """
    assert unwrap(inspect.cleandoc(text)).splitlines() == [
        "Return the value, which is a number.",
        "Parameters",
        "x : int",
        "The first number.",
        "y : int",
        "The second.",
        "- one item",
        "- another",
        ">>> f(1) 2",
    ]


def test_unwrap_keeps_every_word():
    for text in (inspect.getdoc(json), inspect.getdoc(subprocess), inspect.getdoc(ast)):
        before, after = (re.findall(r"\w+", words) for words in (text, unwrap(text)))
        assert after == before


def test_duplicates_and_leaks():
    first = Pair("a", "p", "The document: itself.", "A summary of it all.")
    copy = Pair("b", "q", "the  document, itself", "Another summary.")
    assert without_duplicates([first, copy]) == [first]
    assert without_duplicates([copy], [first]) == []
    other = Pair("c", "q", "Nobody else says these many words.", "Never seen elsewhere at all.")
    short = Pair("d", "q", "Nor these either, or so it is said.", "Seen.")
    pairs = [first, other, short]
    assert leaked(pairs, ["Nothing of the kind."]) == set()
    assert leaked(pairs, ["Here is\na SUMMARY of it\nall!", "unseen"]) == {"a", "d"}
    assert leaked(pairs, ["and xnobody else says these many words too"]) == {"c"}


WHOLE = '''# Licensed to nobody.
"""Reads the river's level from a gauge and warns the mill.

The gauge is asked every minute, and the warning is repeated until somebody answers it.

Arguments are:
    gauge: where it stands

>>> warn()
"""
import time


class RiverGauge(Base):
    """A gauge at one place of the river, which keeps the last hundred levels that it was asked for.

    - one of many
    """

    def read_level(self):
        # Ask it twice.
        """Read it."""
        return self.lastLevel
'''


def test_a_whole_module_or_class_is_summarised_by_its_leading_prose(tmp_path):
    path = tmp_path / "level.py"
    path.write_text(WHOLE + "# So it goes on, line after line.\n" * 120)
    module = Module(path, "river", "river.level")
    source = parse(module)
    (whole,), _ = whole_pairs(module, source)  # the class is too short a document
    assert whole.id == "river.level" and whole.package == "river"
    assert whole.summary == (
        "Reads the river's level from a gauge and warns the mill. The gauge is asked every minute, "
        "and the warning is repeated until somebody answers it."
    )
    lines = whole.document.split("\n")
    assert lines[:3] == ["river level", "Arguments are:", "gauge: where it stands"]
    assert "class river gauge base" in lines and "return self last level" in lines
    assert "ask it twice" in lines and "read it" in lines
    assert "licensed" not in whole.document.lower() and "reads the river" not in whole.document
    path.write_text(WHOLE + "\n".join(f"    LEVEL_{k} = {k}" for k in range(400)))
    pairs, parts = whole_pairs(module, parse(module))
    assert [pair.id for pair in pairs] == ["river.level", "river.level.RiverGauge"]
    assert parts == []  # read_level's docstring is too short


def test_functions_and_shorter_classes_are_parts_to_train_on(tmp_path):
    path = tmp_path / "level.py"
    text = "Reads the level twice, a minute apart, and returns the second if both are near enough."
    path.write_text(WHOLE.replace("Read it.", text) + "        self.lastLevel = 2\n" * 40)
    module = Module(path, "river", "river.level")
    read = read_module(module, whole=True)
    assert read.pairs == []  # all too short
    assert [pair.id for pair in read.parts] == [
        "river.level", "river.level.RiverGauge", "river.level.RiverGauge.read_level",
    ]  # fmt: skip
    function = read.parts[-1]
    assert function.summary == text
    lines = function.document.split("\n")
    assert lines[:2] == ["river gauge read level", "def read level self"]
    assert "return self last level" in lines and text.lower() not in function.document


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("One.\n\nTwo\nmore.\n\n- three", "One. Two more."),
        ("One.\n\nHeading\n-------\nTwo.", "One."),
        ("One.\n\nFor example:\n\n    code()", "One."),
        ("One.\n\n" + "word " * 99 + "\n\nEnd.", "One. " + "word " * 98 + "word"),
        ("One.\n\n" + "word " * 100, "One."),
        ("x: an argument", ""),
        ("  \n", ""),
    ],
)
def test_leading_prose_ends_at_what_is_none(text, summary):
    assert leading_prose(text)[0] == summary


def test_no_package_is_in_two_splits_and_large_ones_train():
    pairs = [
        Pair(f"p{package}.{i}", f"p{package}", f"{package} {i}", "")
        for package in range(150)
        for i in range(300 if package == 0 else 1 + package % 9)
    ]
    splits = split_packages(pairs)
    assert splits["p0"] == "train"
    assert set(splits.values()) == {"train", "validation", "test"}
    for split, share in (("test", 0.065), ("validation", 0.045)):
        size = sum(splits[pair.package] == split for pair in pairs)
        assert share * len(pairs) <= size <= share * len(pairs) + 9
    assert split_packages(reversed(pairs)) == splits


def test_the_packages_are_those_of_requirements():
    names = {distribution.name.lower() for distribution in required_distributions(REQUIREMENTS)}
    assert {"torch", "sympy", "numpy"} <= names  # sympy is required by torch, not in the file
    assert names.isdisjoint({"pytest", "ruff", "mypy", "pip"})
    modules = find_modules(REQUIREMENTS)
    found = {module.package for module in modules}
    assert {"json", "torch", "pydoc_data"} <= found
    assert found.isdisjoint({"test", "pytest", "_pytest", "mypy"})
    assert len({module.name for module in modules}) == len(modules)


def test_passages_are_cut_at_line_ends_and_lose_nothing():
    text = "\n".join(f"line {number}" + "." * (number % 7) for number in range(100))
    pieces = passages(text, 60)
    assert "\n".join(pieces) == text
    assert all(60 <= len(piece) < 60 + 14 + len(piece.split("\n")) for piece in pieces[:-1])
    assert passages("one line", 1) == ["one line"]


@pytest.mark.parametrize("option", ["--limit_files", "--passage_characters"])
def test_sizes_below_one_are_refused(option, exit_of, tmp_path):
    output = tmp_path / "x"
    status, _, error = exit_of(documentation_command.main, "--output", output, option, 0)
    assert (status, error.count("\n")) == (2, 1)
    assert f"{option}: '0': expected an integer of at least 1" in error
    assert not output.exists()


def test_too_few_files_for_three_splits(command, tmp_path):
    with pytest.raises(ValueError, match="give a larger --limit_files"):
        command(documentation_command.main, "--output", tmp_path / "x", "--limit_files", 5)
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def documentation(tmp_path_factory) -> Path:
    """The corpus of some of the files, written by the command line."""
    output = tmp_path_factory.mktemp("documentation") / "text"
    run("--output", output, "--limit_files", LIMIT_FILES)
    return output


def run(*options: object, hash_seed: str = "1") -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "preprocessing/documentation.py"), *map(str, options)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    assert result.returncode == 0, result.stderr


def read_pairs(folder: Path, split: str) -> list[dict]:
    with (folder / f"summaries-{split}.jsonl").open() as file:
        return [json.loads(line) for line in file]


def pretraining_records(path: Path) -> list[dict]:
    with gzip.open(path) as file:
        return [json.loads(line) for line in file]


def pretraining_texts(path: Path) -> list[str]:
    return [record["text"] for record in pretraining_records(path)]


@pytest.mark.slow
def test_the_corpus_is_deterministic_and_passages_stay_in_the_file_of_their_text(
    documentation, tmp_path
):
    """Another hash seed, and texts cut into passages: all else is the same."""
    options = ["--limit_files", LIMIT_FILES, "--passage_characters", 1000]
    run("--output", tmp_path / "cut", *options, hash_seed="2")
    whole, cut = tree(documentation), tree(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    counts = [0, 0]
    for name in whole:
        if not name.endswith(".gz"):
            assert cut[name] == whole[name]  # pairs and counts
            continue
        assert whole[name][4:8] == bytes(4)  # gzip's time stamp: none
        texts, pieces = (
            pretraining_records(folder / name) for folder in (documentation, tmp_path / "cut")
        )
        joined: dict[str, list[str]] = {}
        for piece in pieces:
            joined.setdefault(piece["url"], []).append(piece["text"])
        assert {url: "\n".join(parts) for url, parts in joined.items()} == {
            text["url"]: text["text"] for text in texts
        }
        assert list(joined) == [text["url"] for text in texts]  # in the same order
        counts[0] += len(texts)
        counts[1] += len(pieces)
    assert counts[1] > 2 * counts[0]


@pytest.mark.slow
def test_splits_share_neither_packages_nor_documents(documentation):
    packages, documents = set(), set()
    for split in ("train", "validation", "test"):
        pairs = read_pairs(documentation, split)
        assert len(pairs) >= 20
        mine = {pair["id"].split(".")[0] for pair in pairs}
        assert packages.isdisjoint(mine)
        packages |= mine
        texts = {" ".join(pair["document"].split()) for pair in pairs}
        assert len(texts) == len(pairs)
        assert documents.isdisjoint(texts)
        documents |= texts


@pytest.mark.slow
def test_no_held_out_text_occurs_in_the_pretraining_shards(command, documentation, tmp_path):
    inputs = ["--input", documentation / "documentation-*.json.gz"]
    model, output = tmp_path / "m.model", tmp_path / "shards"
    options = ["--vocab_size", 2000, "--max_sentences", 10_000, "--output", model]
    command(tokenizer_command.main, "train", *inputs, *options)
    lengths = ["--source_length", 100_000, "--target_length", 100_000]
    options = [*inputs, "--tokenizer", model, "--output", output, *lengths]
    command(pretrain.main, *options)

    dataset, tokenizer = Dataset(output), Tokenizer(output)
    files = documentation.glob("documentation-*.json.gz")
    raw = [text for path in files for text in pretraining_texts(path)]
    decoded = [
        tokenizer.decode(ids) for sample in dataset for ids in (sample.source, sample.target)
    ]
    everything = "\n".join(" ".join(text.split()) for text in raw + decoded)
    names = [pair["summary"] for pair in read_pairs(documentation, "train")]
    assert sum(name in everything for name in names) > len(names) // 2  # the search does find
    for split in ("validation", "test"):
        for pair in read_pairs(documentation, split):
            assert " ".join(pair["summary"].split()) not in everything, pair["id"]
            assert " ".join(pair["document"].split()) not in everything, pair["id"]
