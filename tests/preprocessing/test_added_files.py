"""Files added to a finished dataset: a new version of it; what was made before stays as it is."""

import gzip
import json
import shutil

import pytest
from jobs import arguments
from made_up_text import c4_lines, tree, write_lines

from pipeline.manifest import version_name
from pipeline.shards import Dataset
from preprocessing import pretrain


@pytest.fixture
def corpus_of(tmp_path):
    """Makes a folder with these files of the corpus; returns it."""

    def make(*names: str, folder: str = "corpus"):
        for name in names:
            write_lines(tmp_path / folder / f"{name}.jsonl", c4_lines(sum(map(ord, name)), 40))
        return tmp_path / folder

    return make


@pytest.fixture
def job(command, tokenizer_path, tmp_path):
    """Runs a job over all files of a folder."""

    def run(corpus, *more, output="c4"):
        options = arguments(corpus, tokenizer_path, tmp_path / output, *more)
        options[options.index("--input") + 1] = f"{corpus}/*.jsonl"
        command(pretrain.main, *options)
        return tmp_path / output

    return run


def shards_of(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*-00000.*"))}


def samples_of(dataset: Dataset) -> list:
    return [
        (one.source.tolist(), one.target.tolist())
        for one in map(dataset.__getitem__, range(len(dataset)))
    ]


def test_the_same_shards_as_of_all_files_at_once(corpus_of, job):
    folder = job(corpus_of("c4-0", "c4-1"))
    before, old, samples = shards_of(folder), Dataset(folder), samples_of(Dataset(folder))
    assert len(before) == 4
    job(corpus_of("c4-2"))
    whole = job(corpus_of("c4-0", "c4-1", "c4-2"), output="other/c4")
    assert shards_of(folder) == shards_of(whole)
    new, at_once = Dataset(folder), Dataset(whole)
    assert new.manifest["settings"].pop("input_versions") == [2, 3]
    assert new.manifest == at_once.manifest
    kept = Dataset(folder, old.fingerprint)
    assert kept.fingerprint == old.fingerprint and samples_of(kept) == samples
    assert (folder / version_name(old.fingerprint)).is_file()
    assert Dataset(folder, "0" * 64).fingerprint == Dataset(folder).fingerprint
    finished = tree(folder)
    job(corpus_of())  # the same command again: nothing to do
    assert tree(folder) == finished


def test_what_comes_first_by_name_gets_the_last_shard(corpus_of, job):
    folder = job(corpus_of("c4-0", "c4-1"))
    before = shards_of(folder)
    job(corpus_of("a4-0"))
    job(corpus_of("b4-0"))
    made = shards_of(folder)
    assert made.items() >= before.items() and len(made) == 8
    manifest = Dataset(folder).manifest
    inputs = [one.split(",")[0] for one in manifest["settings"]["inputs"]]
    assert inputs == ["c4-0.jsonl", "c4-1.jsonl", "a4-0.jsonl", "b4-0.jsonl"]
    assert manifest["settings"]["input_versions"] == [2, 3, 4]
    assert len(list(folder.glob("manifest-*.json"))) == 2
    (folder / "c4-00000-00000.tar").unlink()  # of the first version
    job(corpus_of())
    assert shards_of(folder) == made


def test_a_duplicate_of_an_earlier_text_is_left_out_and_the_earlier_one_stays(corpus_of, job):
    corpus = corpus_of("c4-1", "c4-2")
    folder = job(corpus, "--deduplicate")
    before, kept = shards_of(folder), Dataset(folder).manifest["counts"]["kept"]
    shutil.copy(corpus / "c4-1.jsonl", corpus / "b4-1.jsonl")  # its name comes before
    job(corpus_of("c4-3"), "--deduplicate")
    counts = Dataset(folder).manifest["counts"]
    assert shards_of(folder).items() >= before.items()
    assert counts["excluded"]["duplicate"] == 40
    alone = job(corpus_of("c4-3", folder="alone"), output="alone-c4")
    assert counts["kept"] == kept + Dataset(alone).manifest["counts"]["kept"]


def test_a_killed_addition_leaves_the_version_before_and_is_resumed(corpus_of, job, monkeypatch):
    folder = job(corpus_of("c4-0", "c4-1"))
    before = Dataset(folder)
    for place in ("_make_shard", "build_manifest", "keep_version", "write_manifest"):
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(f"preprocessing.jobs.run.{place}", lambda *_: 1 / 0)
            job(corpus_of("c4-2"))
        assert Dataset(folder).fingerprint == before.fingerprint
    with pytest.raises(ValueError, match="is not finished: finish it with the 3 inputs"):
        job(corpus_of("c4-3"))
    (corpus_of() / "c4-3.jsonl").unlink()
    job(corpus_of())
    whole = job(corpus_of(), output="other/c4")
    assert shards_of(folder) == shards_of(whole)
    assert len(Dataset(folder).shards) == 3
    assert Dataset(folder, before.fingerprint).fingerprint == before.fingerprint


def test_files_are_not_added_to_an_unfinished_dataset(corpus_of, job):
    folder = job(corpus_of("c4-0", "c4-1"))
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match="is not finished: finish it with the 2 inputs"):
        job(corpus_of("c4-2"))


def test_a_changed_or_missing_input_is_still_refused(corpus_of, job):
    folder = job(corpus_of("c4-0", "c4-1"))
    corpus = corpus_of("c4-2")
    (corpus / "c4-0.jsonl").unlink()
    with pytest.raises(ValueError, match=r"input 0 was c4-0\.jsonl"):
        job(corpus)
    settings = json.loads((folder / ".items/settings.json").read_text())
    assert len(settings["inputs"]) == 2


DAMAGED = gzip.compress(b"lost" * 1000)[:-9]
COMPARED = pytest.mark.parametrize("more", [(), ("--deduplicate",)], ids=["alone", "compared"])


@COMPARED
def test_an_addition_that_cannot_be_read_is_withdrawn_or_replaced(corpus_of, job, more):
    corpus = corpus_of("c4-0", "c4-1")
    folder = job(corpus, *more)
    finished = tree(folder)
    for _ in range(2):
        (corpus / "a4-2.jsonl").write_bytes(DAMAGED)
        with pytest.raises(ValueError, match=r"a4-2\.jsonl is corrupt or truncated"):
            job(corpus, *more)
        (corpus / "a4-2.jsonl").unlink()
        job(corpus, *more)
        assert tree(folder) == finished
    (corpus / "a4-2.jsonl").write_bytes(DAMAGED)
    with pytest.raises(ValueError, match="truncated"):
        job(corpus, *more)
    (corpus / "a4-2.jsonl").unlink()
    job(corpus_of("a4-3"), *more)  # another in its place
    assert Dataset(folder).manifest["settings"]["input_versions"] == [2, 3]
    (corpus / "c4-4.jsonl").write_bytes(DAMAGED)
    with pytest.raises(ValueError, match="truncated"):
        job(corpus, *more)
    job(corpus_of("c4-4"), *more)  # downloaded again
    assert Dataset(folder).manifest["settings"]["input_versions"] == [2, 3, 4]
    at_once = job(corpus_of("c4-0", "c4-1", folder="again"), *more, output="other/c4")
    job(corpus_of("a4-3", folder="again"), *more, output="other/c4")
    job(corpus_of("c4-4", folder="again"), *more, output="other/c4")
    assert tree(folder) == tree(at_once)


@COMPARED
def test_a_damaged_input_of_a_new_job_is_replaced(corpus_of, job, more):
    corpus = corpus_of("c4-0", "c4-1", "c4-2")
    (corpus / "c4-1.jsonl").write_bytes(DAMAGED)
    with pytest.raises(ValueError, match="truncated"):
        job(corpus, *more, "--block_size", "3000")
    folder = job(corpus_of("c4-1"), *more, "--block_size", "3000")  # now of several blocks
    whole = job(corpus, *more, "--block_size", "3000", output="other/c4")
    assert tree(folder) == tree(whole)
