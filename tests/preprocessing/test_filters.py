"""Filters: what is left out, and that each is counted."""

import json

import pytest
from made_up_text import write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain
from preprocessing.filters import Filters, _domain

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
    filters = Filters(blocked_words=frozenset({"mill", "old stone bridge"}))
    assert (filters.fault(text, "") == "blocked word") is found


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
    ],
)
def test_domains_and_their_subdomains(url, found):
    entries = map(_domain, ["example.org", "http://whole.net/", "sub.slash.net/"])
    filters = Filters(blocked_domains=frozenset(entries))
    assert (filters.fault("text", url) == "blocked domain") is found


def test_every_filter_counts_what_it_leaves_out(command, tokenizer_path, tmp_path, monkeypatch):
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


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--min_characters", 0, "--min_characters is 0"),
        ("--url_pattern", "(", r"--url_pattern \("),
        ("--accept", "json", "expected MODULE:FUNCTION"),
        ("--accept", "json:nothing", "--accept json:nothing"),
        ("--accept", "os:strerror", r"--accept os:strerror failed on the document 'https"),
        ("--accept", "json:__name__", "is not a function"),
        ("--blocked_words", "/dev/null", "holds no entry"),
    ],
)
def test_refusals(command, corpus, tokenizer_path, tmp_path, option, value, message):
    arguments = ["--input", corpus / "*", "--tokenizer", tokenizer_path, "--output", tmp_path / "o"]
    with pytest.raises(ValueError, match=message):
        command(pretrain.main, *arguments, option, value)
    assert not (tmp_path / "o/manifest.json").exists()
