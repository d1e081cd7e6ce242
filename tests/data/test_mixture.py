"""Several datasets as one: their weights, their tokenizer, what a checkpoint remembers of them."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.config import DataConfig, parse
from pipeline.data.batches import Batches
from pipeline.data.mixture import Mixture
from pipeline.data.order import GlobalOrder
from pipeline.manifest import MANIFEST
from pipeline.shards import Dataset, file_sha256


def mixture(train, **more) -> Mixture:
    return Mixture(DataConfig(train=str(train), **more))


def test_one_dataset_is_as_it_would_be_alone(dataset_folder):
    one, dataset = mixture(dataset_folder), Dataset(dataset_folder)
    assert one.fingerprint == dataset.fingerprint and len(one) == len(dataset)
    order = GlobalOrder([[shard.samples for shard in dataset.shards]], 8, 3)
    assert one.order(8, 3).samples(5) == order.samples(5)


def test_a_batch_holds_both_datasets_samples(dataset_folder, validation_folder):
    both = mixture(dataset_folder, mixture={str(validation_folder): 0.5})
    order = both.order(12, seed=0)
    refs = order.samples(0)
    assert [ref.dataset for ref in refs].count(1) == 4
    batch = Batches(both.datasets, order, 0, 1, 1).step(0)
    wanted = sorted(both.datasets[ref.dataset][ref.sample].source.tolist() for ref in refs)
    micro = batch.micro_batches[0]
    rows = zip(micro.input_ids, micro.attention_mask, strict=True)
    assert sorted(row[mask == 1].tolist() for row, mask in rows) == wanted


def test_an_epoch_is_one_of_data_train(dataset_folder, validation_folder):
    both = mixture(dataset_folder, mixture={str(validation_folder): 0.25})
    refs = both.order(len(both), seed=0).samples(0)
    drawn = sorted(ref.sample for ref in refs if ref.dataset == 0)
    assert drawn == [*range(26)]


def test_weights_and_datasets_are_part_of_the_fingerprint(dataset_folder, validation_folder):
    found = {
        mixture(dataset_folder).fingerprint,
        mixture(dataset_folder, mixture={str(validation_folder): 0.5}).fingerprint,
        mixture(dataset_folder, mixture={str(validation_folder): 0.500001}).fingerprint,
        mixture(validation_folder, mixture={str(dataset_folder): 0.5}).fingerprint,
    }
    assert len(found) == 4


def test_tokenizers_must_be_one_and_both_are_named(dataset_folder, validation_folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(validation_folder, other)
    (other / "tokenizer.model").write_bytes(b"another")
    found = file_sha256(other / "tokenizer.model")
    manifest = json.loads((other / MANIFEST).read_text())
    wanted = manifest["tokenizer"]["sha256"]
    manifest["tokenizer"]["sha256"] = found
    (other / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f"{other}.*{found}.*{wanted}.*one tokenizer"):
        mixture(dataset_folder, mixture={str(other): 1.0})


def test_a_dataset_given_twice_is_refused(dataset_folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(dataset_folder, copy)
    with pytest.raises(ValueError, match=f"data.mixture {copy} is the same dataset as "):
        mixture(dataset_folder, mixture={str(copy): 1.0})
    with pytest.raises(ValueError, match=r"data.mixture also names data\.train"):
        mixture(dataset_folder, mixture={str(dataset_folder): 1.0})


@pytest.mark.parametrize("weight", ["0", "-1", ".inf", ".nan"])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(ValueError, match=r"data\.mixture gives b the weight"):
        parse(["--data.train", "a", "--data.mixture", f"{{b: {weight}}}"])


def test_a_stage_folder_that_cannot_be_is_refused(dataset_folder, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match=f"data.stage_dir {file}"):
        mixture(dataset_folder, stage_dir=str(file))


def test_no_recipe_names_data():
    recipes = Path(__file__).resolve().parents[2] / "pipeline" / "recipes"
    for recipe in recipes.glob("*.yaml"):
        assert not {"mixture:", "stage_dir:"} & set(recipe.read_text().split())
