"""evaluate.py --source_use_by_position: which ids are exchanged, and what the loss says of it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from finished_evaluation import ALONE, contents, lines

from pipeline.common.plot_style import PALETTE
from pipeline.distributed import world as distributed
from pipeline.evaluate import main
from pipeline.evaluation import evaluator
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.examples import Examples
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.evaluation.source_use import (
    complete_losses,
    exchanged,
    model_losses,
    partners,
    plan_exchange,
    tenth,
)
from pipeline.manifest import write_manifest
from pipeline.model import load_model
from pipeline.scoring.source_use import Losses, mean_over_seeds, rises, summarise
from pipeline.shards import Dataset, Sample, write_shard

CLI = Path(__file__).resolve().parents[2] / "pipeline" / "evaluate.py"
EOS = 1


@pytest.fixture
def measuring(options):
    """Options that measure, and generate nothing."""
    return replace(options, systems=("lead",), source_use_by_position=True)


def command(options: EvaluationOptions) -> list[str]:
    """The same on the command line."""
    return [
        f"--checkpoint={options.checkpoint}", f"--data={options.data}",
        f"--output={options.output}", "--precision=fp32", "--systems=lead", "--batch_size=4",
        "--lead_sentences=1", "--max_new_tokens=10", "--source_use_by_position",
    ]  # fmt: skip


def rewritten(dataset_folder: Path, folder: Path, samples: list[Sample]) -> Path:
    """The tiny dataset with these samples."""
    folder.mkdir()
    dataset = Dataset(dataset_folder)
    (folder / "tokenizer.model").write_bytes(dataset.tokenizer_path.read_bytes())
    shard = write_shard(
        folder / "other-00000-00000", ((f"{k:05d}", one) for k, one in enumerate(samples))
    )
    write_manifest(folder, {**dataset.manifest, "shards": [shard]})
    return folder


@pytest.mark.parametrize(("length", "prefix"), [(11, 0), (38, 0), (111, 1), (12, 1)])
def test_ten_parts_of_nearly_equal_size_cover_the_text(length, prefix):
    parts = [tenth(length, part, prefix) for part in range(10)]
    covered = [place for part in parts for place in range(length)[part]]
    assert covered == list(range(prefix, length - 1))  # neither the prefix nor EOS
    sizes = {part.stop - part.start for part in parts}
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_one_part_is_replaced_cut_or_repeated_to_its_length():
    source = np.array([0, *range(100, 125), EOS], np.uint16)  # parts of 2 or 3, after a prefix
    longer = np.array([0, *range(200, 240), EOS], np.uint16)  # parts of 4: cut
    shorter = np.array([0, *range(300, 310), EOS], np.uint16)  # parts of 1: repeated
    assert exchanged(source, longer, 0, prefix=1).tolist() == [
        0, 200, 201, *range(102, 125), EOS,
    ]  # fmt: skip
    assert exchanged(source, longer, 9, prefix=1).tolist() == [
        0, *range(100, 122), 236, 237, 238, EOS,
    ]  # fmt: skip
    assert exchanged(source, shorter, 1, prefix=1).tolist() == [
        0, 100, 101, 301, 301, 301, *range(105, 125), EOS,
    ]  # fmt: skip
    assert source.tolist() == [0, *range(100, 125), EOS]


def test_the_partner_is_the_next_longer_document_of_another_text():
    a, b, c, d = (letter.encode() for letter in "abcd")
    texts = {0: (30, a), 2: (20, b), 3: (20, b), 5: (20, c), 8: (90, d)}
    assert partners(texts) == {2: 5, 3: 5, 5: 0, 0: 8, 8: 0}
    with pytest.raises(ValueError, match=r"at least 2 different documents .* there is 1; give"):
        partners({0: (20, a), 1: (20, a)})


def test_a_system_that_reads_one_part_is_found_out(dataset_folder, tmp_path):
    """Its loss counts the ids in tenth 7 that are not the document's own: a known function."""
    examples = Examples(Dataset(dataset_folder))
    exchange = plan_exchange(examples, 4)
    own = {examples[i].target.tobytes(): examples[i].source for i in range(len(examples))}
    assert len(own) == len(examples)

    def losses(sources, targets):
        found = []
        for source, target in zip(sources, targets, strict=True):
            true = own[target.tobytes()]
            assert len(source) == len(true) and source[-1] == EOS
            part = tenth(len(true), 6)
            found.append((5.0 + np.sum(source[part] != true[part]), len(target)))
        return found

    store = Losses(tmp_path, "model")
    complete_losses(store, examples, exchange, losses, ALONE)
    records = store.read()
    expected = []
    for index, record in enumerate(records):
        source = examples[index].source
        other = examples[exchange.partners[index]].source
        part = tenth(len(source), 6)
        given = np.resize(other[tenth(len(other), 6)], part.stop - part.start)
        changed = int(np.sum(given != source[part]))
        assert record["losses"] == [5.0, *[5.0] * 6, 5.0 + changed, *[5.0] * 3]
        expected.append(changed)
    found = rises(records)
    tokens = sum(len(examples[i].target) for i in range(len(examples)))
    assert found[6]["rise"] == pytest.approx(sum(expected) / tokens) and found[6]["low"] > 0
    assert all(one["rise"] == one["low"] == one["high"] == 0 for one in found if one["part"] != 7)
    assert [(one["part"], one["from"], one["to"]) for one in found] == [
        (k + 1, k / 10, (k + 1) / 10) for k in range(10)
    ]


def test_the_interval_is_the_projects_bootstrap_over_documents():
    rng = np.random.default_rng(0)
    records = [
        {"index": k, "tokens": int(rng.integers(5, 50)), "losses": rng.normal(9, 2, 11).tolist()}
        for k in range(40)
    ]
    changes = np.array([np.array(one["losses"][1:]) - one["losses"][0] for one in records])
    tokens = np.array([one["tokens"] for one in records])
    draws = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), size=1000)
    ratios = (draws @ changes) / (draws @ tokens)[:, None]
    for part, one in enumerate(rises(records)):
        assert one["rise"] == pytest.approx(changes[:, part].sum() / tokens.sum())
        bounds = np.percentile(ratios[:, part], [2.5, 97.5])
        assert [one["low"], one["high"]] == pytest.approx(bounds)


def test_losses_are_those_of_each_document_alone(measuring, checkpoint):
    """In float64, unpadded and one at a time, against batches of four in fp32."""
    results, worked = evaluate(measuring, ALONE)
    assert worked
    examples = Examples(Dataset(measuring.data))
    exchange = plan_exchange(examples, 4)
    model = load_model(checkpoint / "model").double()
    for record in lines(measuring.output / "losses-model.jsonl")[::4]:
        example = examples[record["index"]]
        other = examples[exchange.partners[record["index"]]].source
        sources = [example.source, *(exchanged(example.source, other, k) for k in range(10))]
        labels = torch.from_numpy(example.target.astype(np.int64))[None]
        with torch.no_grad():
            by_hand = [
                float(model(torch.from_numpy(ids.astype(np.int64))[None], None, labels)[0])
                for ids in sources
            ]
        assert record["tokens"] == len(example.target)
        assert record["losses"] == pytest.approx(
            [loss * len(example.target) for loss in by_hand], rel=1e-5
        )
    found = json.loads((measuring.output / "results.json").read_text())
    assert found == results
    assert found["source_use_by_position"] == rises(lines(measuring.output / "losses-model.jsonl"))
    assert all(abs(one["rise"]) > 1e-6 for one in found["source_use_by_position"])
    counts = {"measured": 26, "too_short": 0, "without_reference": 0}
    assert found["source_use_documents"] == counts


def test_short_sources_and_those_without_a_reference_are_left_out(
    measuring, dataset_folder, tmp_path
):
    samples = list(Dataset(dataset_folder))[:6]
    samples[1] = replace(samples[1], source=samples[1].source[-10:])  # 9 tokens and EOS
    samples[2] = replace(samples[2], source=samples[2].source[-11:])  # 10 tokens and EOS
    hidden = {**samples[4].metadata, "references": []}
    samples[4] = replace(samples[4], metadata=hidden, target=np.array([EOS], np.uint16))
    examples = Examples(Dataset(rewritten(dataset_folder, tmp_path / "data", samples)), hidden=True)
    exchange = plan_exchange(examples, 4)
    assert exchange.left_out == {1: "too_short", 4: "without_reference"}
    assert sorted(index for batch in exchange.batches for index in batch) == [0, 2, 3, 5]
    assert set(exchange.partners.values()) <= {0, 2, 3, 5}
    store = Losses(tmp_path, "model")

    def losses(sources, targets):
        return [(1.0, len(target)) for target in targets]

    complete_losses(store, examples, exchange, losses, ALONE)
    store.check_whole(6)
    counts = {"measured": 4, "too_short": 1, "without_reference": 1}
    assert summarise(store.read())["source_use_documents"] == counts


def test_too_few_documents_are_refused_before_anything_is_made(measuring, dataset_folder, tmp_path):
    with pytest.raises(ValueError, match="gives 1 document; give more, or leave it out"):
        evaluate(replace(measuring, limit=1), ALONE)
    samples = [replace(one, source=one.source[-5:]) for one in list(Dataset(dataset_folder))[:3]]
    short = rewritten(dataset_folder, tmp_path / "data", samples)
    with pytest.raises(ValueError, match="there is none; give more"):
        evaluate(replace(measuring, data=short), ALONE)
    assert not measuring.output.exists()


def test_it_is_added_to_an_evaluation_and_resumed_to_the_same_files(
    measuring, options, tmp_path, monkeypatch
):
    whole = replace(measuring, output=tmp_path / "whole")
    evaluate(whole, ALONE)
    assert evaluate(replace(options, systems=("lead",)), ALONE)[1]
    passes = []

    def stopping(*arguments):
        losses = model_losses(*arguments)

        def stop(*batch):
            passes.append(len(batch[0]))
            if len(passes) == 11 * 3 + 5:
                raise KeyboardInterrupt
            return losses(*batch)

        return stop

    monkeypatch.setattr(evaluator, "model_losses", stopping)
    with pytest.raises(KeyboardInterrupt):
        evaluate(measuring, ALONE)
    part = measuring.output / "losses-model.part-0.jsonl"
    assert len(lines(part)) == 12
    part.write_bytes(part.read_bytes()[:-20])
    assert evaluate(measuring, ALONE)[1]
    assert contents(measuring.output) == contents(whole.output)
    assert len(passes) == 11 * (7 + 1) + 5  # the batch of the torn line is measured again
    assert not evaluate(measuring, ALONE)[1]
    (measuring.output / "results.json").unlink()
    results, _ = evaluate(replace(measuring, source_use_by_position=False), ALONE)
    assert "source_use_by_position" in results  # kept once it is there


def test_it_is_printed_and_drawn(measuring, capsys, monkeypatch):
    monkeypatch.setattr(distributed, "start", lambda: ALONE)
    words = command(measuring)
    main([*words, "--dry_run"])
    assert "to do: lead, source use by position" in capsys.readouterr().out
    main(words)
    said = capsys.readouterr().out
    found = json.loads((measuring.output / "results.json").read_text())["source_use_by_position"]
    for one in found:
        shown = f"{one['rise']:+.4f} ({one['low']:+.4f} to {one['high']:+.4f})"
        assert f"| {one['from']:.0%} to {one['to']:.0%} | {shown} |" in said
    assert "Measured on 26 documents." in said
    picture = matplotlib.image.imread(measuring.output / "source_use.png")[..., :3]
    curve = [int(PALETTE[0][place : place + 2], 16) / 255 for place in (1, 3, 5)]
    assert (np.abs(picture - curve).max(axis=2) < 0.02).sum() > 500  # pixels of the curve
    main(words)
    assert "nothing to do" in capsys.readouterr().out


def test_seeds_are_joined_document_by_document():
    def record(index: int, *losses: float) -> dict:
        return {"index": index, "tokens": 3, "losses": list(losses)}

    short = {"index": 1, "left_out": "too_short"}
    seeds = [[record(0, 1, 2), short], [record(0, 3, 6), short]]
    assert mean_over_seeds(seeds) == [record(0, 2, 4)]
    with pytest.raises(ValueError, match="the seeds' losses are of different documents"):
        mean_over_seeds([seeds[0], [short, record(1, 1, 2)]])


@pytest.mark.slow
def test_two_processes_write_the_same_files_as_one(measuring, tmp_path):
    alone = replace(measuring, output=tmp_path / "alone")
    evaluate(alone, ALONE)
    words = [
        sys.executable, "-m", "deepspeed.launcher.runner", "-q", "--num_accelerators", "2",
        str(CLI), *command(measuring),
    ]  # fmt: skip
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    expected, found = contents(alone.output), contents(measuring.output)
    assert found.pop("source_use.png")
    assert found == expected


STOPPED_IN_THE_THIRD_BATCH = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
from pipeline import evaluate
from pipeline.evaluation import source_use
records, calls = source_use.batch_records, []
def stopping(*arguments):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGUSR2)
    return records(*arguments)
source_use.batch_records = stopping
evaluate.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_signal_stops_it_with_status_85_and_its_batches_are_kept(measuring, tmp_path):
    words = [sys.executable, "-c", STOPPED_IN_THE_THIRD_BATCH, str(CLI.parents[1])]
    done = subprocess.run(
        [*words, *command(measuring)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 85 and "stopped: SIGUSR2 (rank 0)" in done.stderr
    assert len(lines(measuring.output / "losses-model.part-0.jsonl")) == 8
    assert not (measuring.output / "results.json").exists()
    alone = replace(measuring, output=tmp_path / "alone")
    for options in (measuring, alone):
        assert evaluate(options, ALONE)[1]
    assert contents(measuring.output) == contents(alone.output)
