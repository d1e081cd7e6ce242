"""A tiny tokenizer, datasets and model checkpoints, made on the spot."""

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

# At toy sizes threads only wait for each other, ten times as long on a busy machine.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import sentencepiece

from pipeline.manifest import write_manifest
from pipeline.shards import Sample, write_shard
from pipeline.tokenizer import Tokenizer

# Shells start background jobs with SIGINT ignored; tests send it to processes they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A command's main that runs in this process leaves no signal handler to later tests."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Of two folders read as {name: content}, the names that differ instead of all bytes."""
    if op != "==" or not (holds_files(left) and holds_files(right)):
        return None
    only = [f"only {side}: {sorted(one.keys() - other.keys())}"
            for side, one, other in (("left", left, right), ("right", right, left))]  # fmt: skip
    changed = sorted(name for name in left.keys() & right.keys() if left[name] != right[name])
    sizes = ", ".join(
        f"{name} ({len(left[name])} and {len(right[name])} bytes)" for name in changed
    )
    return ["the same files", *only, f"other content: {sizes or 'none'}"]


def holds_files(value: object) -> bool:
    """Whether it is {name: content}."""
    return isinstance(value, dict) and {*map(type, value.values())} == {bytes}


WORDS = (
    "the river runs past an old stone mill where three children watch grey herons fish until "
    "evening light turns every window gold and someone calls them home for soup bread cheese"
).split()


def sentence(rng: random.Random) -> str:
    """A made-up sentence of five to twelve words."""
    words = [rng.choice(WORDS) for _ in range(rng.randint(5, 12))]
    return " ".join(words).capitalize() + "."


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory) -> Path:
    """A SentencePiece model of 64 pieces with T5's ids."""
    folder = tmp_path_factory.mktemp("tokenizer")
    rng = random.Random(0)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([sentence(rng) for _ in range(400)]),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=64,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return folder / "tokenizer.model"


def make_dataset(folder: Path, tokenizer_path: Path, seed: int, shard_sizes=(17, 0, 9)) -> Path:
    """A summarisation dataset whose summary is the document's first sentence."""
    rng = random.Random(seed)
    tokenizer = Tokenizer(tokenizer_path)
    folder.mkdir(parents=True)
    shutil.copy(tokenizer_path, folder / "tokenizer.model")

    def sample() -> Sample:
        sentences = [sentence(rng) for _ in range(rng.randint(2, 6))]
        source = [*tokenizer.encode(" ".join(sentences)), tokenizer.eos_id]
        target = [*tokenizer.encode(sentences[0]), tokenizer.eos_id]
        metadata = {"references": [sentences[0]], "source_text": "\n".join(sentences)}
        return Sample(np.array(source, np.uint16), np.array(target, np.uint16), metadata)

    shards = []
    for number, size in enumerate(shard_sizes):
        samples = []
        for k in range(size):
            one = sample()
            one.metadata["id"] = f"{number}-{k}"
            samples.append((f"{number:05d}-{k:05d}", one))
        shards.append(write_shard(folder / f"tiny-{number:05d}-00000", samples))
    write_manifest(
        folder,
        {
            "format_version": 1,
            "kind": "summarisation",
            "name": "tiny",
            "split": "train",
            "tokenizer": {
                "file": "tokenizer.model",
                "sha256": tokenizer.sha256,
                "vocab_size": tokenizer.vocab_size,
            },
            "id_dtype": "uint16",
            "settings": {},
            "shards": shards,
            "counts": {"documents": sum(shard_sizes), "kept": sum(shard_sizes), "excluded": {}},
            "lengths": {},
        },
    )
    return folder


@pytest.fixture(scope="session")
def make_sized_dataset(tokenizer_path) -> Callable[[Path, int, int], Path]:
    """Makes a dataset of `samples` samples: (folder, seed, samples) -> folder."""
    return lambda folder, seed, samples: make_dataset(folder, tokenizer_path, seed, (samples,))


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory, tokenizer_path) -> Path:
    """A dataset of 26 samples in three shards, one of them empty."""
    return make_dataset(tmp_path_factory.mktemp("data") / "tiny", tokenizer_path, seed=1)


@pytest.fixture(scope="session")
def validation_folder(tmp_path_factory, tokenizer_path) -> Path:
    """Ten other samples of the same kind."""
    return make_dataset(
        tmp_path_factory.mktemp("data") / "validation", tokenizer_path, seed=2, shard_sizes=(10,)
    )


def make_model(folder: Path, tokenizer_path: Path, seed: int) -> Path:
    """A kept checkpoint, of random weights large enough that sources change summaries."""
    import torch  # which the tests of preprocessing do without

    from pipeline.model import Locost, LocostConfig, save_model

    torch.manual_seed(seed)
    config = LocostConfig(
        vocab_size=Tokenizer(tokenizer_path).vocab_size,
        d_model=16,
        state_dim=4,
        d_ff=32,
        encoder_layers=2,
        decoder_layers=2,
        num_heads=2,
        head_dim=8,
    )
    model = Locost(config)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.mul_(3)
    save_model(model, folder / "model", tokenizer=tokenizer_path)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, tokenizer_path) -> Path:
    """A kept checkpoint: model/ with config, weights and tokenizer."""
    return make_model(tmp_path_factory.mktemp("run") / "best", tokenizer_path, seed=0)


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory, tokenizer_path) -> Path:
    """The same with other weights."""
    return make_model(tmp_path_factory.mktemp("run") / "other", tokenizer_path, seed=5)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Under `--dist loadfile` the tests of tests/slurm share a worker too, and go first."""
    if config.getvalue("dist") != "loadfile":
        return None
    from worker_groups import GroupScheduling

    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under `--dist loadfile --no-loadscope-reorder` the longest groups of tests go first."""
    if config.getoption("dist", "no") == "loadfile" or hasattr(config, "workerinput"):
        from worker_groups import rank

        items.sort(key=lambda item: rank(item.nodeid))


@pytest.fixture(scope="session")
def exported_modules(tmp_path_factory):
    """A folder of this session into which transformers copies the code of exported models."""
    transformers = pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("modules"))
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", folder)
        patch.syspath_prepend(folder)
        yield
