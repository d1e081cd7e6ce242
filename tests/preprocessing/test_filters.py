"""Filters: excluded documents, each counted by reason."""

import json
import re

import pytest
from made_up_text import write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain
from preprocessing.readers.blocklists import BlockedWords, read_domains, read_words
from preprocessing.readers.filters import Filters

TEXT = "The mill stands by the river. Herons fish there. They wait. We watch. It gets dark."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A Mill.", True),
        ("a mill-wheel", True),
        ("windmill", False),
        ("mills", False),
        ("the  OLD\nstone, bridge", True),
        ("the old bridge of stone", False),
    ],
)
def test_whole_words_and_phrases(text, found):
    filters = Filters(blocked_words=BlockedWords(["mill", "old stone bridge"]))
    assert (filters.fault(text, "") == "blocked word") is found


@pytest.mark.parametrize(
    ("entry", "text", "found"),
    [
        ("a$$", "What an A$$!", True),
        ("a$$", "a letter, an article", False),
        ("a$$", "extra$$", False),
        ("$hip", "a ship", False),
        ("🖕", "no\U0001f595way", True),
        ("f*ck", "f ck", False),
        ("off-by-one", "an off-by-one error", True),
        ("off-by-one", "an off-by-oneness", False),
        ("cafe\u0301", "The café is shut.", True),
        ("don't  do", "Don't do it", True),
        ("c++", "in C++, for", True),
    ],
)
def test_other_characters_are_matched_as_they_stand(entry, text, found):
    assert BlockedWords([entry]).match(text) is found


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://example.org/page", True),
        ("http://www.Example.org:80/", True),
        ("https://notexample.org/", False),
        ("https://sub.whole.net/page", True),
        ("https://org/", False),
        ("https://other.net/example.org", False),
        ("no url", False),
        ("http://[broken", False),
        ("example.org/page", True),
        ("http://art.museum/", True),
        ("https://www.xn--bcher-kva.de/", True),
        ("https://b\xfccher.de/", True),
    ],
)
def test_domains_and_their_subdomains(url, found, tmp_path):
    entries = ["\ufeffExample.org", "# a comment", "http://whole.net/", "sub.slash.net/", ".museum"]
    (tmp_path / "list").write_text("\r\n".join([*entries, "b\xfccher.de"]), encoding="utf-8")
    filters = Filters(blocked_domains=read_domains(str(tmp_path / "list"))[0])
    assert (filters.fault("text", url) == "blocked domain") is found


@pytest.mark.parametrize("url", ["", "no url", "http://[broken", "http:///path"])
def test_what_has_no_domain_is_counted_under_a_filter_of_domains_or_urls(url, tmp_path):
    (tmp_path / "list").write_text("example.org")
    filters = Filters(blocked_domains=read_domains(str(tmp_path / "list"))[0])
    assert filters.fault("text", url) == "no URL"
    assert Filters(url_pattern=re.compile("x")).fault("text", "") == "no URL"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("0.0.0.0 bad-site.com", "write bad-site.com"),
        ("127.0.0.1\tlocalhost", "write one domain per line"),
        ("*.bad-site.com", "write bad-site.com"),
        ("||bad-site.com^", "write bad-site.com"),
        ("https://bad-site.com/a/b", "write bad-site.com"),
        ("bad-site.com:8080", "write bad-site.com"),
        ("address=/bad-site.com/0.0.0.0", "write bad-site.com"),
        ("badword", "or .org for all of them"),
    ],
)
def test_an_entry_that_is_no_domain_is_refused_with_its_line(entry, said, tmp_path):
    (tmp_path / "list").write_text(f"# blocked\ngood.org\n{entry}\n{entry}\n")
    with pytest.raises(ValueError, match=r"line 3 \(of 2 such lines\)") as error:
        read_domains(str(tmp_path / "list"))
    assert said in str(error.value)


def test_a_byte_order_mark_is_not_part_of_a_word(tmp_path):
    (tmp_path / "list").write_bytes(b"\xef\xbb\xbfmill\r\nweir\r\n")
    assert read_words(str(tmp_path / "list"))[0].match("the mill")


def test_every_filter_counts_its_exclusions(command, tokenizer_path, tmp_path, monkeypatch):
    documents = {
        "https://a.org/en/1": TEXT,
        "https://a.org/en/2": TEXT + " Badword.",
        "https://sub.bad.org/en/3": TEXT,
        "https://a.org/fr/4": TEXT,
        "https://a.org/en/5": "One. Two.",
        "https://a.org/en/6": TEXT * 9,
        "https://a.org/en/7": "Verboten. " + TEXT,
    }
    lines = [json.dumps({"text": text, "url": url}) for url, text in documents.items()]
    source = write_lines(tmp_path / "c4.jsonl", lines)
    (tmp_path / "words.txt").write_text("badword\n\nsome phrase\n")
    (tmp_path / "domains.txt").write_text("Bad.org\n")
    (tmp_path / "our_filters.py").write_text(
        "def english(text, url):\n    return 'verboten' not in text.lower()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["--input", source, "--tokenizer", tokenizer_path, "--output", tmp_path / "out"]
    filters = [
        *("--min_characters", 20, "--max_characters", 500),
        *("--blocked_words", tmp_path / "words.txt", "--blocked_domains", tmp_path / "domains.txt"),
        *("--url_pattern", "/en/", "--accept", "our_filters:english"),
    ]
    command(pretrain.main, *arguments, *filters)
    manifest = Dataset(tmp_path / "out").manifest
    assert manifest["counts"]["kept"] == 1
    assert manifest["counts"]["excluded"] == {
        "URL does not match": 1,
        "blocked domain": 1,
        "blocked word": 1,
        "not accepted": 1,
        "too long": 1,
        "too short": 1,
    }
    for name in ("min_characters", "url_pattern", "accept", "blocked_words"):
        assert name in manifest["settings"]
    (tmp_path / "words.txt").write_text("badword\nanother\n")
    with pytest.raises(ValueError, match="blocked_words was sha256"):
        command(pretrain.main, *arguments, *filters)


@pytest.mark.parametrize("layout", ["module", "package", "imported"])
def test_a_changed_function_is_another_setting(command, corpus, tokenizer_path, tmp_path,
                                               monkeypatch, layout):  # fmt: skip
    """Two policies under one manifest would otherwise mix in a resumed job."""
    name = f"policy_{layout}"
    source = tmp_path / f"{name}.py"
    if layout != "module":
        source = tmp_path / name / ("lists.py" if layout == "imported" else "__init__.py")
        source.parent.mkdir()
    source.write_text("def keep(text, url):\n    return True\n")
    if layout == "imported":
        (tmp_path / name / "__init__.py").write_text("from .lists import keep\n")
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["--input", corpus / "*", "--tokenizer", tokenizer_path, "--output", tmp_path / "o"]
    arguments += ["--accept", f"{name}:keep"]
    command(pretrain.main, *arguments)
    command(pretrain.main, *arguments)
    source.write_text("def keep(text, url):\n    return bool(url)\n")
    with pytest.raises(ValueError, match=rf"accept was {name}:keep, sha256 \w+, now {name}:keep"):
        command(pretrain.main, *arguments)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--url_pattern", "(", r"--url_pattern \("),
        ("--accept", "json", "expected MODULE:FUNCTION"),
        ("--accept", "json:nothing", "--accept json:nothing"),
        (
            "--accept",
            "os:strerror",
            r"c4-0.json.gz, record 1: --accept os:strerror failed on the document 'https",
        ),
        ("--accept", "json:__name__", "is not a function"),
        ("--accept", "contextlib:nullcontext", "failed on the document 'https"),
        ("--accept", "asyncio:sleep", "does not return true or false"),
        ("--accept", "ast:iter_fields", "does not return true or false"),
        ("--accept", "antigravity.none", "expected MODULE:FUNCTION"),
        ("--accept", "sys:exit", "failed on the document 'https.*"),
        ("--blocked_words", "/dev/null", "has no entries"),
    ],
)
def test_refusals(command, corpus, tokenizer_path, tmp_path, option, value, message):
    arguments = ["--input", corpus / "*", "--tokenizer", tokenizer_path, "--output", tmp_path / "o"]
    with pytest.raises(ValueError, match=message):
        command(pretrain.main, *arguments, option, value)
    assert not (tmp_path / "o/manifest.json").exists()


def test_a_limit_below_one_is_refused(exit_of, corpus, tokenizer_path, tmp_path):
    arguments = ["--input", corpus / "*", "--tokenizer", tokenizer_path, "--output", tmp_path / "o"]
    status, _, error = exit_of(pretrain.main, *arguments, "--min_characters", 0)
    assert (status, error.count("\n")) == (2, 1)
    assert "--min_characters: '0': expected an integer of at least 1" in error
    assert not (tmp_path / "o").exists()
