"""Recorded micro-batches are the trainer's; a dataset of their lengths; its first losses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline import benchmark
from pipeline.benchmarking import micro_batches, training_data
from pipeline.benchmarking.data_loading import Load
from pipeline.benchmarking.micro_batches import Shape
from pipeline.config import parse
from pipeline.data import planning
from pipeline.estimation.lengths import Lengths
from pipeline.shards import Dataset

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "../shared/data"
SIZES = ["--batch_size", "12", "--ranks", "2", "--source_length", "30", "--target_length", "9"]
SHAPES = [Shape(40, 9, ((40, 3), (2, 9))), Shape(7, 5, ((7, 5), (6, 5), (5, 2)))]


def test_a_record_holds_the_micro_batches_of_all_processes(dataset_folder, tmp_path, capsys):
    file = tmp_path / "shapes" / "recorded.json"
    arguments = ["micro-batches", "--data", str(dataset_folder), "--json", str(file), *SIZES]
    assert benchmark.main([*arguments, "--accumulation", "1", "3"]) == 0
    recorded = micro_batches.read(file)
    assert [*recorded] == [1, 3]
    for accumulation, shapes in recorded.items():
        load = Load(dataset_folder, 12, 2, accumulation, (30, 9))
        ranks = [load.of_rank(rank).step(0) for rank in (0, 1)]
        made = [one for pair in zip(*(r.micro_batches for r in ranks), strict=True) for one in pair]
        assert len(made) == len(shapes) == 2 * accumulation
        for batch, shape in zip(made, shapes, strict=True):
            assert batch.input_ids.shape == (shape.samples, shape.source)
            assert batch.labels.shape == (shape.samples, shape.target)
            targets = (batch.labels >= 0).sum(1).tolist()
            assert [*zip(batch.attention_mask.sum(1).tolist(), targets, strict=True)] == [
                *shape.rows
            ]
        fill = micro_batches.fill(shapes)
        assert fill == pytest.approx((ranks[0].source_fill, ranks[0].target_fill))
    assert "accumulation 3: 6 micro-batches" in capsys.readouterr().out


def test_inputs_are_padded_where_the_rows_are():
    ids, mask, labels = SHAPES[1].inputs(50, torch.device("cpu"))
    assert ids.shape == mask.shape == (3, 7) and labels.shape == (3, 5)
    assert mask.sum(1).tolist() == [7, 6, 5]
    assert (labels != -100).sum(1).tolist() == [5, 5, 2]
    assert (ids[mask == 0] == 0).all() and ids[mask == 1].min() >= 3 and ids.max() < 50
    assert labels[labels != -100].min() >= 3 and labels.max() < 50


def test_shorter_shapes():
    assert SHAPES[0].shrunk(8) == Shape(5, 2, ((5, 2), (2, 2)))
    assert SHAPES[0].shortened() == Shape(39, 8, ((39, 2), (2, 8)))


def test_c4s_micro_batches_are_one_update_cut_twice_as_the_trainer_cuts_it():
    recorded = micro_batches.read()
    assert {key: len(shapes) for key, shapes in recorded.items()} == {1: 16, 2: 32}
    rows = [sorted(row for one in shapes for row in one.rows) for shapes in recorded.values()]
    assert rows[0] == rows[1] and len(rows[0]) == 256
    for accumulation, shapes in recorded.items():
        sizes = [(one.samples, one.source, one.target) for one in shapes]
        _, made = planning.micro_batches(np.array(rows[0]), 16 * accumulation, (4096, 910))
        assert sorted(sizes) == sorted(map(tuple, made.tolist()))
    source, target = micro_batches.fill(recorded[2])
    assert source > 0.85 and target > 0.6


@pytest.mark.slow
def test_c4s_record_is_what_its_command_makes(tmp_path):
    if not (SHARED / "c4").is_dir():
        pytest.skip("no sample of C4 in ../shared/data")
    command = [sys.executable, ROOT / "preprocessing/pretrain.py", "--output", tmp_path / "c4"]
    command += ["--input", SHARED / "c4/c4-train.*.json.gz"]
    command += ["--tokenizer", SHARED / "tokenizers/t5_spiece.model"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    file = tmp_path / "made.json"
    assert (
        benchmark.main(["micro-batches", "--data", str(tmp_path / "c4"), "--json", str(file)]) == 0
    )
    assert json.loads(file.read_text()) == json.loads(micro_batches.C4.read_text())


@pytest.mark.parametrize(
    "content",
    [
        "[]", "{}", '{"micro_batches": {"1": [{"padded": "2x3x4", "rows": "3x4"}]}}',
        '{"micro_batches": {"1": [{"padded": "1x3x4", "rows": "4x4"}]}}',
    ],
)  # fmt: skip
def test_another_file_is_refused(content, tmp_path):
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"not a record of micro-batches .* micro-batches --data"):
        micro_batches.read(file)


def test_a_dataset_of_the_rows_lengths(tmp_path):
    training_data.write(tmp_path / "shards", SHAPES, vocab_size=50, copies=2)
    training_data.write(tmp_path / "again", SHAPES, vocab_size=50, copies=2)
    dataset = Dataset(tmp_path / "shards")
    dataset.check_files()
    samples = [dataset[i] for i in range(len(dataset))]
    rows = [row for shape in SHAPES for row in shape.rows]
    rows += [(max(2, source - 1), max(2, target - 1)) for source, target in rows]
    assert [(len(one.source), len(one.target)) for one in samples] == rows
    for one in samples:
        for ids in (one.source, one.target):
            assert ids[-1] == 1 and ids[:-1].min() >= 3 and ids.max() < 50
    shards = [next((tmp_path / name).glob("*.tar")).read_bytes() for name in ("shards", "again")]
    assert shards[0] == shards[1]  # seeded
    lengths = Lengths.of(dataset.manifest)
    assert lengths.sources == {"edges": [1, 2, 4, 8, 16, 32, 64],
                               "counts": [0, 2, 1, 5, 0, 0, 2]}  # fmt: skip


def test_first_losses_are_the_models_on_the_first_batch(tmp_path):
    training_data.write(tmp_path / "shards", SHAPES, vocab_size=50, copies=2)
    config, _ = parse([
        "--config", "pretrain_c4.yaml", "--data.train", str(tmp_path / "shards"), "--output", "x",
        "--train.batch_size", "5", "--train.accumulation", "2", "--model.d_model", "16",
        "--model.d_ff", "32", "--model.state_dim", "4", "--model.encoder_layers", "1",
        "--model.decoder_layers", "1", "--model.num_heads", "2", "--model.head_dim", "8",
    ])  # fmt: skip
    losses = training_data.first_losses(config, torch.device("cpu"))
    assert losses.rows != losses.rows_on_cpu  # in another precision
    assert losses.rows == pytest.approx(losses.rows_on_cpu, rel=2e-2)
    assert losses.update == pytest.approx(losses.rows, rel=0.5)
    assert losses == training_data.first_losses(config, torch.device("cpu"))
