"""Files on stores: read by ranges through faults, written whole, refused in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from servers import https_server

from pipeline.common import stores
from pipeline.common.stores import StorePath, find, put, read_range, sizes, store_path
from pipeline.distributed.world import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def large(server, tmp_path) -> tuple[StorePath, bytes]:
    """An object of several blocks, and its content."""
    content = os.urandom(700_001)
    (tmp_path / "large.bin").write_bytes(content)
    path = store_path("s3://corpus/files/large.bin")
    put(tmp_path / "large.bin", path)
    return path, content


def test_a_file_is_read_from_beginning_to_end_and_anywhere(large, server):
    path, content = large
    before = len(server.faults.requests)
    assert path.read_bytes() == content
    ranges = [range_ for method, _, range_ in server.faults.requests[before:] if method == "GET"]
    assert len(ranges) == 3  # blocks grow
    with path.open("rb", 0) as file:
        assert file.seek(-10, os.SEEK_END) == len(content) - 10
        assert file.read(100) == content[-10:]
        assert file.read(1) == b""
        file.seek(123_456)
        assert file.read(7) == content[123_456:123_463]
        assert file.tell() == 123_463


@pytest.mark.parametrize("fault", ["throttled", "cut"])
def test_a_fault_in_the_middle_repeats_one_range(large, faults, fault):
    path, content = large
    faults.order(fault, "GET", "large.bin", times=2)
    assert path.read_bytes() == content


def test_a_store_that_stays_away_is_named_with_the_reason(large, server, monkeypatch, capsys):
    path, _ = large
    server.faults.order("throttled", "GET", "large.bin", times=100)
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    server.faults._waiting.clear()
    assert caught.value.filename == str(path)
    assert caught.value.strerror == "Please reduce the rate. (tried 4 times)"
    assert "trying again" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["throttled", "half"])
def test_an_upload_is_whole_or_repeated(server, faults, tmp_path, fault):
    content = os.urandom(50_000)
    (tmp_path / "x").write_bytes(content)
    path = store_path(f"s3://corpus/files/{fault}.bin")
    faults.order(fault, "PUT", f"{fault}.bin")
    put(tmp_path / "x", path)
    assert path.read_bytes() == content


def test_patterns_and_listings(server, corpus):
    found = find("s3://corpus/c4/c4-*.json.gz")
    assert [(path.name, path.size) for path in found] == [
        (name, (corpus / name).stat().st_size) for name in ("c4-0.json.gz", "c4-1.json.gz")
    ]
    assert find("s3://corpus/c4/c4-2.jsonl") == [StorePath("s3://corpus/c4/c4-2.jsonl")]
    assert find("s3://corpus/c4/none-*") == find("s3://corpus/none.gz") == []
    assert sizes(StorePath("s3://corpus/c4")).keys() == {path.name for path in corpus.iterdir()}
    assert sizes(StorePath("s3://corpus/nothing")) == {}
    with pytest.raises(ValueError, match="is a folder"):
        find("s3://corpus/c4")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://host/x.gz", "is on no store known here"),
        ("pipe://cat", "is on no store known here"),
        ("file:///etc/passwd", "is on no store known here"),
        ("simplecache::s3://corpus/c4/c4-2.jsonl", "is on no store known here"),
        ("http://example.org/x.gz", "read unencrypted; give https://"),
        ("s3://key:secret@corpus/x.gz", "a URL holds a user's name or key"),
        ("s3://corpus/../x.gz", "is no URL"),
        ("s3://*/x.gz", "is no URL"),
        ("s3://corpus/a\nb", "is no URL"),
    ],
)
def test_other_urls_are_refused(url, reason):
    with pytest.raises(ValueError, match=reason):
        store_path(url)


def test_a_missing_bucket_is_named(server):
    for pattern in ("s3://no-such-bucket/x.gz", "s3://no-such-bucket/*.gz"):
        with pytest.raises(FileNotFoundError) as caught:
            find(pattern)
        assert caught.value.strerror == "there is no such bucket"
        assert caught.value.filename == "s3://no-such-bucket"


def test_missing_credentials_are_named(server, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    stores._filesystem.cache_clear()
    with pytest.raises(PermissionError) as caught:
        find("s3://corpus/c4/*.gz")
    stores._filesystem.cache_clear()
    assert "AWS_PROFILE" in caught.value.strerror


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    stores._filesystem.cache_clear()
    with pytest.raises(ValueError, match=r"gs:// needs gcsfs: `pip install gcsfs`"):
        find("gs://bucket/x.gz")


@pytest.fixture(scope="module")
def web(tmp_path_factory, corpus):
    """A web server of the corpus whose certificate the environment trusts."""
    with (
        https_server(corpus, tmp_path_factory.mktemp("keys")) as (address, authority, handler),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SSL_CERT_FILE", str(authority))
        patch.setenv("NO_PROXY", "localhost")
        stores._filesystem.cache_clear()
        yield address, handler
        stores._filesystem.cache_clear()


def test_https_by_ranges_with_a_cut_connection(web, corpus):
    address, handler = web
    (path,) = find(f"{address}/c4-0.json.gz?signature=secret")
    assert str(path) == f"{address}/c4-0.json.gz"
    handler.cuts = 2
    assert path.read_bytes() == (corpus / "c4-0.json.gz").read_bytes()
    assert handler.cuts == 0
    assert find(f"{address}/none.gz") == []


def test_https_without_ranges_is_refused(web, monkeypatch):
    address, handler = web
    monkeypatch.setattr(handler, "ranges", False)
    (path,) = find(f"{address}/c4-2.jsonl")
    with pytest.raises(ValueError, match="sends whole files only"):
        read_range(path, 100, 200)


def test_an_unknown_certificate_is_refused_at_once(web, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    stores._filesystem.cache_clear()
    with pytest.raises(OSError, match="certificate verify failed"):
        find(f"{web[0]}/c4-0.json.gz")
    stores._filesystem.cache_clear()


def test_local_paths_do_not_import_fsspec():
    code = (
        "import sys; from preprocessing import pretrain, finetune; from pipeline import shards; "
        "print([name for name in sys.modules if name.split('.')[0] in ('fsspec', 's3fs')])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert done.stdout.strip() == b"[]", done.stderr


def test_a_server_that_is_not_there_is_asked_again(server, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    stores._filesystem.cache_clear()
    try:
        with pytest.raises(OSError) as caught:
            store_path("s3://corpus/files/large.bin").read_bytes()
    finally:
        stores._filesystem.cache_clear()
    assert "(tried 4 times); check the network, and for S3 AWS_ENDPOINT_URL" in str(caught.value)
    assert "; trying again in " in capsys.readouterr().err
