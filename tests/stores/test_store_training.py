"""Training from a store: the samples of a local run, through copies that are checked."""

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from pipeline.common.stores import put, store_path
from pipeline.config import DataConfig, parse
from pipeline.data import order as order_module
from pipeline.data.batches import Batches
from pipeline.data.mixture import Mixture
from pipeline.data.shard_cache import ShardCache
from pipeline.data.stored_dataset import StoredDataset, open_dataset
from pipeline.distributed.world import World
from pipeline.manifest import write_manifest
from pipeline.shards import DamagedData, Dataset, write_shard
from pipeline.training.prepare import prepare

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SHARDS = 8


@pytest.fixture(scope="module")
def local(tmp_path_factory, dataset_folder) -> Path:
    """The tiny dataset's samples in eight shards."""
    source, data = Dataset(dataset_folder), tmp_path_factory.mktemp("sharded") / "data"
    data.mkdir()
    (data / "tokenizer.model").write_bytes(source.tokenizer_path.read_bytes())
    entries = [
        write_shard(
            data / f"tiny-{k:05d}-00000", [(f"{i:05d}", source[i]) for i in range(k, 26, SHARDS)]
        )
        for k in range(SHARDS)
    ]
    tokenizer = {**source.manifest["tokenizer"], "file": "tokenizer.model"}
    write_manifest(data, {**source.manifest, "tokenizer": tokenizer, "shards": entries})
    return data


@pytest.fixture(scope="module")
def url(server, local) -> str:
    return upload(local, "s3://corpus/shards/data")


def upload(folder: Path, url: str) -> str:
    for path in folder.iterdir():
        put(path, store_path(f"{url}/{path.name}"))
    return url


def same(one, two) -> bool:
    return all(
        torch.equal(x, y)
        for a, b in zip(one.micro_batches, two.micro_batches, strict=True)
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def gets(requests, suffix: str) -> dict[str, int]:
    """How often each file of a suffix was asked for."""
    paths = [path for method, path, _ in requests if method == "GET" and path.endswith(suffix)]
    return {path: paths.count(path) for path in paths}


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_are_those_of_the_local_dataset(faults, url, local, tmp_path, monkeypatch, ahead):
    monkeypatch.setattr(order_module, "WINDOW_SHARDS", 2)
    for fault in ("throttled", "cut"):
        faults.order(fault, "GET", "tiny-00003-00000.tar")
        faults.order(fault, "GET", "tiny-00005-00000.npy")
    before = len(faults.requests)
    mixture = Mixture(DataConfig(train=url, stage_dir=str(tmp_path / "stage")))
    order = mixture.order(4, seed=2)
    cache = ShardCache(mixture.datasets, order) if ahead else None
    stored = Batches(mixture.datasets, order, 0, 1, 2)
    plain = Batches([Dataset(local)], order, 0, 1, 2)
    for step in range(6):  # one epoch
        if cache:
            cache.advance(step)
        assert same(stored.step(step), plain.step(step))
    requests = faults.requests[before:]
    assert gets(requests, "manifest.json") == {"/corpus/shards/data/manifest.json": 1}
    faulty = {
        "/corpus/shards/data/tiny-00003-00000.tar",
        "/corpus/shards/data/tiny-00005-00000.npy",
    }
    for suffix in (".npy", ".tar"):
        found = gets(requests, suffix)
        assert len(found) == SHARDS
        if not cache:  # else windows may have passed before they were used
            assert all(count == (3 if path in faulty else 1) for path, count in found.items())
    if cache:
        copies = mixture.datasets[0].copies
        assert 0 < len([*copies.glob("*.tar")]) < SHARDS
        cache.close()
        assert not copies.exists()


def test_many_threads_fetch_a_shard_once(server, url, tmp_path):
    dataset = open_dataset(url, str(tmp_path))
    before, gate = len(server.faults.requests), threading.Barrier(8)

    def read() -> None:
        gate.wait()
        dataset[0]

    threads = [threading.Thread(target=read) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    requests = server.faults.requests[before:]
    assert [*gets(requests, ".tar").values(), *gets(requests, ".npy").values()] == [1, 1]
    assert pickle.loads(pickle.dumps(dataset))[0].metadata == dataset[0].metadata
    assert isinstance(dataset, StoredDataset) and dataset.copies.parent == tmp_path


def test_a_copy_that_is_removed_or_cut_is_made_again(url, local, tmp_path):
    dataset = open_dataset(url, str(tmp_path))
    expected = Dataset(local)[0]
    assert (dataset[0].source == expected.source).all()
    again = open_dataset(url, str(tmp_path))
    tar = next(dataset.copies.glob("*.tar"))
    tar.write_bytes(tar.read_bytes()[:-512])
    assert (again[0].source == expected.source).all()


def test_another_content_of_the_same_size_is_refused(server, local, tmp_path):
    url = upload(local, "s3://corpus/shards/changed")
    content = bytearray((local / "tiny-00000-00000.tar").read_bytes())
    content[600] ^= 1
    (tmp_path / "changed").write_bytes(content)
    put(tmp_path / "changed", store_path(f"{url}/tiny-00000-00000.tar"))
    dataset = open_dataset(url, str(tmp_path / "stage"))
    dataset.check_files()
    with pytest.raises(DamagedData, match=r"tiny-00000-00000\.tar has sha256"):
        dataset[0]
    (tmp_path / "changed").write_bytes(content[:-512])
    put(tmp_path / "changed", store_path(f"{url}/tiny-00000-00000.tar"))
    with pytest.raises(DamagedData, match="not as long as the manifest says"):
        dataset.check_files()


def refusal(tmp_path: Path, *arguments: str) -> str:
    config, _ = parse(["--output", str(tmp_path / "run"), *arguments])
    with pytest.raises((ValueError, OSError)) as caught:
        prepare(config, World(0, 1, 0, torch.device("cpu")))
    return str(caught.value)


def test_refusals_name_what_to_do(server, url, local, tmp_path):
    for folders in (("--data.train", url), ("--data.train", str(local), "--data.validation", url)):
        said = refusal(tmp_path, *folders)
        assert f"{url} is on a store: give --data.stage_dir DIR" in said and "\n" not in said
    stage = ("--data.stage_dir", str(tmp_path / "stage"))
    said = refusal(tmp_path, "--data.train", "s3://corpus/shards/none", *stage)
    assert "s3://corpus/shards/none is not a complete dataset" in said
    with pytest.raises(ValueError, match="only training reads shards from there"):
        Dataset(Path(url))


def test_a_run_from_a_store_has_the_losses_of_a_local_run(server, url, local, tmp_path):
    small = (
        "--model.d_model 8 --model.d_ff 16 --model.state_dim 4 --model.encoder_layers 1 "
        "--model.decoder_layers 1 --model.num_heads 1 --model.head_dim 8 --train.batch_size 8 "
        "--train.precision fp32 --train.max_steps 4 --train.validate_every 4"
    ).split()
    code = (
        "import json, sys; sys.path[0] = sys.argv[1]\n"
        "from pipeline.config import parse\n"
        "from pipeline.distributed import world as distributed\n"
        "from pipeline.training.prepare import prepare\n"
        "from pipeline.training.trainer import train\n"
        "world = distributed.start()\n"
        "for arguments in json.loads(sys.argv[2]):\n"
        "    config, _ = parse(arguments)\n"
        "    assert train(config, prepare(config, world), world) == 0\n"
        "distributed.stop()\n"
    )
    runs, stage = [], tmp_path / "stage"
    for name, data, more in (
        ("local", str(local), ()),
        ("stored", url, ("--data.stage_dir", str(stage))),
    ):
        folders = ["--data.train", data, "--data.validation", data, "--output", tmp_path / name]
        runs.append([*map(str, (*small, *folders, *more))])
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), json.dumps(runs)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("local", "stored")
    ]
    plain, stored = ([line.get("loss") for line in run] for run in lines)
    assert plain == stored and len([loss for loss in plain if loss]) == 4
    assert [path.name.partition("-")[0] for path in stage.iterdir()] == ["dataset"]
