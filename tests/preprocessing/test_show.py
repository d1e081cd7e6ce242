"""Printing and verifying a dataset."""

import hashlib
import json
import math
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from made_up_text import write_lines

from pipeline.manifest import write_manifest
from pipeline.shards import Dataset, Sample, write_shard
from preprocessing import finetune, pretrain, show
from preprocessing.dataset.as_text import sample_text
from preprocessing.dataset.verify import faults
from preprocessing.gap_sentences import select_gap_sentences

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dataset(command, corpus, tokenizer_path, tmp_path):
    options = ["--input", corpus / "c4-*", "--tokenizer", tokenizer_path]
    command(pretrain.main, *options, "--output", tmp_path / "c4")
    return Dataset(tmp_path / "c4")


def test_manifest_as_a_table(command, capsys, dataset):
    capsys.readouterr()
    command(show.main, dataset.path)
    lines = capsys.readouterr().out.splitlines()
    rows = dict(line.split("  ", 1) for line in lines[: lines.index("")])
    rows = {name: value.strip() for name, value in rows.items()}
    counts = dataset.manifest["counts"]
    assert rows["documents"] == str(counts["documents"])
    assert rows["kept"] == str(len(dataset))
    assert rows["settings: ratio"] == "0.2"
    assert dataset.manifest["tokenizer"]["sha256"] in rows["tokenizer"]
    assert rows["source ids"].startswith(f"mean {dataset.manifest['lengths']['source']['mean']}")


def test_sample_as_text(command, capsys, dataset):
    capsys.readouterr()
    command(show.main, dataset.path, "--sample", 5)
    text = capsys.readouterr().out
    assert dataset[5].metadata["url"] in text
    marked = [line for line in text.splitlines() if line.startswith("> ")]
    assert len(marked) == len(dataset[5].metadata["gap_sentences"])
    with pytest.raises(ValueError, match=f"has samples 0 to {len(dataset) - 1}"):
        command(show.main, dataset.path, "--sample", len(dataset))


def test_references_are_shown_whole(command, capsys, tokenizer_path, tmp_path):
    pair = {
        "id": "a",
        "document": "A mill by the river.",
        "summary": ["It is old.", "An old mill."],
    }
    source = write_lines(tmp_path / "x.jsonl", [json.dumps(pair)])
    options = ["--dataset", "jsonl", "--input", source, "--tokenizer", tokenizer_path]
    command(finetune.main, *options, "--target_length", 2, "--output", tmp_path / "set")
    for sample, summary in enumerate(pair["summary"]):
        command(show.main, tmp_path / "set", "--sample", sample)
        text = capsys.readouterr().out
        assert "target (2 ids, cut)" in text
        assert f"reference 0, untruncated:\n{summary}" in text


def test_histogram_bars(command, capsys, dataset):
    command(show.main, dataset.path)
    bars = capsys.readouterr().out.split("source ids\n")[1].split("\n\n")[0].splitlines()
    histogram = dataset.manifest["lengths"]["source"]["histogram"]
    shown = {row.split()[0]: (int(row.split()[1]), row.count("#")) for row in bars}
    assert sum(count for count, _ in shown.values()) == len(dataset)
    most = max(histogram["counts"])
    for edge, count in zip(histogram["edges"], histogram["counts"], strict=True):
        span = f"{edge // 2 + 1}-{edge}" if edge > 2 else f"{edge}"
        if count:
            assert shown[span] == (count, math.ceil(50 * count / most))


def test_gap_sentences_are_marked_in_their_positions(command, capsys, tokenizer_path, tmp_path):
    sentences = [f"The mill {'old ' * k}ran." for k in range(6)]
    path = write_lines(tmp_path / "a.jsonl", [json.dumps({"text": " ".join(sentences), "url": ""})])
    options = ["--input", path, "--tokenizer", tokenizer_path, "--ratio", 0.4]
    gaps = select_gap_sentences(sentences, 0.4)
    for more in ([], ["--mask_share", 0.5]):
        output = tmp_path / f"set{len(more)}"
        command(pretrain.main, *options, *more, "--output", output)
        capsys.readouterr()
        command(show.main, output, "--sample", 0)
        lines = capsys.readouterr().out.split("marked by >:\n")[1].splitlines()
        marked = [f"{'> ' if i in gaps else '  '}{text}" for i, text in enumerate(sentences)]
        assert lines == marked
    cut = [*options, "--target_length", 3, "--source_length", 8, "--output", tmp_path / "cut"]
    command(pretrain.main, *cut)
    command(show.main, tmp_path / "cut", "--sample", 0)
    text = capsys.readouterr().out
    assert "source (8 ids, cut), and target (3 ids, cut)" in text
    assert text.count("> ") == len(gaps)
    assert text.count("> (cut off)") == len(gaps) - 1


def test_without_source_ends_source_and_target_are_separate(tokenizer_path, tmp_path):
    ends = {"url": "", "gap_sentences": [0], "target_sentence_ends": [2]}
    folder = made(tmp_path / "old", tokenizer_path, [Sample(ids(5, 6, 1), ids(7, 8, 1), ends)])
    text = "\n".join(sample_text(Dataset(folder), 0))
    assert "\nsource (3 ids):\n" in text
    assert "\ntarget (3 ids):\n" in text


def test_a_sample_is_found_by_id_or_url_or_drawn(command, capsys, dataset):
    urls = [dataset[i].metadata["url"] for i in range(len(dataset))]
    wanted = len(dataset) - 1
    capsys.readouterr()
    command(show.main, dataset.path, "--find", urls[wanted])
    text = capsys.readouterr().out
    assert text.startswith(f"sample {urls.index(urls[wanted])}\n") and urls[wanted] in text
    with pytest.raises(ValueError, match=f"none of the {len(dataset)} samples has this id or url"):
        command(show.main, dataset.path, "--find", "https://nowhere")
    shown = set()
    for _ in range(20):
        command(show.main, dataset.path, "--random")
        shown.add(capsys.readouterr().out.split("\n")[0])
    assert len(shown) > 1


def test_the_stored_text_is_shown_and_no_character_obeyed(
    command, capsys, tokenizer_path, tmp_path
):
    document = "An old mill.\n\tIt 川 stands\x1b[2J by\u202e the river."
    record = {"id": "a\x9b31m", "document": document, "summary": "A mill."}
    source = write_lines(tmp_path / "x.jsonl", [json.dumps(record)])
    options = ["--dataset", "jsonl", "--input", source, "--tokenizer", tokenizer_path]
    command(finetune.main, *options, "--output", tmp_path / "set")
    capsys.readouterr()
    command(show.main, tmp_path / "set", "--sample", 0)
    text = capsys.readouterr().out
    shown = document.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert text.endswith(f"\nsource text, untruncated:\n{shown}\n")
    assert "⁇" in text.split("target")[0]  # what the tokenizer lacks
    assert "id: a\\x9b31m\n" in text
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in text)


def test_verify_refuses_members_that_are_not_samples(command, dataset):
    shard = dataset.path / f"{dataset.shards[0].name}.tar"
    with tarfile.open(shard, "a") as tar:
        tar.addfile(tarfile.TarInfo("00000-extra.pyd"))
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    manifest["shards"][0] |= {
        "bytes": shard.stat().st_size, "sha256": hashlib.sha256(shard.read_bytes()).hexdigest()
    }  # fmt: skip
    write_manifest(dataset.path, manifest)
    (fault,) = faults(Dataset(dataset.path), range(1))
    assert "00000-extra.pyd" in fault and "is not in the index" in fault


def test_one_shard_of_a_folder(command, capsys, dataset):
    first, second = dataset.shards[:2]
    command(show.main, dataset.path / f"{second.name}.tar", "--sample", 0)
    assert dataset[first.samples].metadata["url"] in capsys.readouterr().out
    with pytest.raises(ValueError, match=f"has samples 0 to {second.samples - 1}"):
        command(show.main, dataset.path / f"{second.name}.tar", "--sample", second.samples)
    stray = dataset.path / "other.tar"
    stray.write_bytes(b"")
    with pytest.raises(ValueError, match="is not in its folder's manifest"):
        command(show.main, stray)


def test_a_closed_pipe_is_not_an_error(dataset):
    command = [sys.executable, ROOT / "preprocessing" / "show.py", dataset.path]
    shown = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shown.stdout.close()
    assert shown.communicate()[1] == b""
    assert shown.returncode == 0


def test_verify_accepts_the_commands_datasets(command, capsys, dataset, dataset_folder):
    command(show.main, dataset.path, "--verify")
    assert f"{len(dataset)} samples in 3 shards, every checksum" in capsys.readouterr().out
    command(show.main, dataset.path / f"{dataset.shards[1].name}.tar", "--verify")
    assert f"{dataset.shards[1].samples} samples in 1 shards" in capsys.readouterr().out
    assert list(faults(Dataset(dataset_folder), range(3))) == []  # one of them empty


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("payload", "sha256 is"),
        ("cut", "bytes, the manifest says"),
        ("gone", "No such file"),
        ("index cut", "does not hold the"),
        ("offset", "the index says"),
        ("length", "ids, the index says"),
    ],
)
def test_verify_names_the_first_fault_of_each_shard(command, capsys, dataset, damage, said):
    for shard in (0, 2):
        tar = dataset.path / f"{dataset.shards[shard].name}.tar"
        index = tar.with_suffix(".npy")
        rows = np.load(index)
        if damage == "payload":
            content = bytearray(tar.read_bytes())
            content[rows[1]["offset"] + 9] ^= 1
            tar.write_bytes(content)
        elif damage == "cut":
            tar.write_bytes(tar.read_bytes()[:-512])
        elif damage == "gone":
            tar.unlink()
        elif damage == "index cut":
            np.save(index, rows[:-1])
        else:
            rows[1]["offset" if damage == "offset" else "target_length"] += 1
            np.save(index, rows)
    with pytest.raises(SystemExit) as end:
        command(show.main, dataset.path, "--verify")
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 2
    for line, shard in zip(errors, (0, 2), strict=True):
        assert dataset.shards[shard].name in line
        assert said in line


@pytest.mark.parametrize(
    ("source", "ends", "said"),
    [
        ((5, 6), [1], "its source must have EOS (id 1) at its end and only there"),
        ((5, 1, 6, 1), [3], "its source must have EOS (id 1) at its end and only there"),
        ((5, 164, 1), [2], "its source has id 164, the vocabulary has 164"),
        ((), [], "its source has no ids"),
        ((5, 6, 1), [1], "its source_sentence_ends do not end at its last id"),
        ((5, 6, 7, 1), [2, 1, 3], "its source_sentence_ends do not end at its last id"),
    ],
)
def test_verify_reads_every_sample(tokenizer_path, tmp_path, source, ends, said):
    good = Sample(ids(5, 1), ids(5, 1), {"target_sentence_ends": [1]})
    bad = Sample(ids(*source), ids(5, 1), {"source_sentence_ends": ends})
    folder = made(tmp_path / "set", tokenizer_path, [good, bad])
    (fault,) = faults(Dataset(folder), range(1))
    assert "set-0.tar: sample 1 (0-1.mp): " in fault
    assert said in fault
    good = made(tmp_path / "good", tokenizer_path, [good])
    assert list(faults(Dataset(good), range(1))) == []


def test_verify_adds_up_the_counts(dataset):
    path = dataset.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["counts"]["kept"] += 1
    path.write_text(json.dumps(manifest))
    shown = list(faults(Dataset(dataset.path), range(0)))
    assert len(shown) == 2
    assert f"counts say kept {len(dataset) + 1}, the shards hold {len(dataset)}" in shown[0]
    assert "kept and excluded add up to" in shown[1]


def test_verify_finds_keys_used_twice(tokenizer_path, tmp_path):
    good = Sample(ids(5, 1), ids(5, 1), {})
    folder = made(tmp_path / "set", tokenizer_path, [good], [good], keys=("0-0", "0-1"))
    (fault,) = faults(Dataset(folder), range(2))
    assert "set-1.tar: key 0-1 has the prefix of the keys in set-0.tar" in fault
    folder = made(tmp_path / "twice", tokenizer_path, [good, good], keys=("0-0", "0-0"))
    (fault,) = faults(Dataset(folder), range(1))
    assert "0-0.mp is not a new sample" in fault


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.uint16)


def made(folder: Path, tokenizer_path: Path, *shards: list[Sample], keys=None) -> Path:
    """A dataset of these samples, valid or not."""
    folder.mkdir()
    content = tokenizer_path.read_bytes()
    (folder / "tokenizer.model").write_bytes(content)
    names = iter(keys or [f"{i}-{k}" for i, shard in enumerate(shards) for k in range(len(shard))])
    entries = [
        write_shard(folder / f"{folder.name}-{i}", [(next(names), sample) for sample in shard])
        for i, shard in enumerate(shards)
    ]
    manifest = {
        "format_version": 1,
        "kind": "pretraining",
        "name": folder.name,
        "split": "train",
        "tokenizer": {
            "file": "tokenizer.model",
            "sha256": hashlib.sha256(content).hexdigest(),
            "vocab_size": 164,
        },
        "id_dtype": "uint16",
        "settings": {},
        "shards": entries,
        "counts": {},
        "lengths": {},
    }
    write_manifest(folder, manifest)
    return folder
