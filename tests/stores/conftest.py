"""One S3 server for all tests here, with C4-like files, and the commands called in this process."""

import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import s3fs
from servers import KEYS, s3_server

from pipeline.common import stores
from preprocessing import pretrain
from preprocessing.jobs.options import run_command

WORDS = "the river runs past an old stone mill where three children watch grey herons".split()


def documents(seed: int, count: int) -> Iterator[bytes]:
    """Lines in C4's format; every tenth has no text."""
    rng = random.Random(seed)
    for number in range(count):
        sentences = (" ".join(rng.choices(WORDS, k=9)).capitalize() for _ in range(8))
        text = "" if number % 10 == 9 else ". ".join(sentences) + "."
        record = {"text": text, "url": f"https://example.org/{seed}/{number}"}
        yield json.dumps(record).encode() + b"\n"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Three files: c4-0.json.gz, c4-1.json.gz, c4-2.jsonl."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(2):
        content = gzip.compress(b"".join(documents(number, 40)), mtime=0)
        (folder / f"c4-{number}.json.gz").write_bytes(content)
    (folder / "c4-2.jsonl").write_bytes(b"".join(documents(2, 40)))
    return folder


@pytest.fixture(scope="session")
def server(corpus) -> Iterator[SimpleNamespace]:
    """The S3 server (`address`, `faults`); the bucket `corpus` holds the files in c4/."""
    with s3_server() as (address, faults), pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        stores._files(stores.store_path("s3://corpus")).mkdir("corpus")
        for path in corpus.iterdir():
            stores.put(path, stores.store_path(f"s3://corpus/c4/{path.name}"))
        yield SimpleNamespace(address=address, faults=faults)
        stores._filesystem.cache_clear()


@pytest.fixture
def faults(server):
    """To order faults; all have to happen."""
    yield server.faults
    assert server.faults.are_over


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """No pause before a request is repeated, and no repetition inside s3fs."""
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(stores, "WAITS", (0, 0, 0))
    monkeypatch.setattr(stores, "QUICK_WAITS", (0, 0))


@pytest.fixture
def exit_of(monkeypatch, capsys):
    """`exit_of(*arguments)` runs preprocessing.pretrain: (exit status, output, errors)."""

    def call(*arguments: object, main=pretrain.main) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        capsys.readouterr()
        status = 0
        try:
            run_command(main)
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call
