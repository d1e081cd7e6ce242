"""Preprocessing from and to a store: the same bytes as on a local disk, resumed after any fault."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet
import pytest

from pipeline.common.stores import put, sizes, store_path
from preprocessing import finetune, pretrain
from preprocessing.jobs import run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
BLOCKS = ("--block_size", "4000")  # c4-2.jsonl is several items
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(scope="module")
def options(tokenizer_path):
    """Of a job on the corpus in the bucket, but for its output."""
    return ["--input", "s3://corpus/c4/c4-*", "--tokenizer", tokenizer_path, *BLOCKS]


@pytest.fixture(scope="module")
def local(corpus, tokenizer_path, tmp_path_factory) -> dict[str, bytes]:
    """The files of the dataset that local inputs give in a local folder, by name."""
    output = tmp_path_factory.mktemp("local") / "c4"
    command = ["command", "--input", corpus / "c4-*", "--tokenizer", tokenizer_path, *BLOCKS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*map(str, command), "--output", str(output)])
        pretrain.main()
    return {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}


def tars(names: Iterable[str]) -> int:
    return sum(name.endswith(".tar") for name in names)


def stored(url: str) -> dict[str, bytes]:
    """The files of a folder in the bucket, by name."""
    folder = store_path(url)
    return {name: (folder / name).read_bytes() for name in sizes(folder)}


def test_a_large_gz_in_a_store_makes_the_shards_of_the_plain_file(
    server, exit_of, corpus, tokenizer_path, tmp_path
):
    pytest.importorskip("rapidgzip", reason="needs requirements-extras.txt")
    plain = tmp_path / "c4-0.json"
    plain.write_bytes(gzip.decompress((corpus / "c4-0.json.gz").read_bytes()))
    made = []
    for name, source in (("plain", plain), ("packed", "s3://corpus/c4/c4-0.json.gz")):
        output = tmp_path / name / "c4"
        command = ["--input", source, "--tokenizer", tokenizer_path, "--block_size", 2000]
        assert exit_of(*command, "--split_gzip", "--output", output)[0] == 0
        made.append({path.name: path.read_bytes() for path in output.glob("*.tar")})
    assert made[0] == made[1] and len(made[0]) > 2


def test_store_to_disk(server, exit_of, options, local, tmp_path):
    status, output, _ = exit_of(*options, "--output", tmp_path / "c4")
    assert status == 0
    assert "excluded: empty 12" in output
    assert {path.name: path.read_bytes() for path in (tmp_path / "c4").glob("[a-z]*")} == local


def test_store_to_store_through_faults(faults, exit_of, options, local, tmp_path):
    faults.order("throttled", "GET", "c4-0.json.gz")
    faults.order("cut", "GET", "c4-1.json.gz")
    faults.order("half", "PUT", "00001-00000.tar")
    faults.order("throttled", "PUT", "manifest.json")
    before = len(faults.requests)
    arguments = (*options, "--output", "s3://corpus/out/c4", "--work_dir", tmp_path / "work")
    status, output, _ = exit_of(*arguments)
    assert status == 0 and "s3://corpus/out/c4: 108 samples from 120 documents" in output
    assert stored("s3://corpus/out/c4") == local
    puts = [path for method, path, _ in faults.requests[before:] if method == "PUT"]
    assert puts[0].endswith("/tokenizer.model") and puts[-1].endswith("/manifest.json")
    assert not [*(tmp_path / "work").glob("*.tar")]

    before = len(faults.requests)
    assert exit_of(*arguments)[0] == 0  # nothing is left to do
    puts = [path for method, path, _ in faults.requests[before:] if method == "PUT"]
    assert len(puts) == 1 and puts[0].endswith("/tokenizer.model")


def test_two_ranks_to_a_store(server, options, local, tmp_path):
    mpirun = shutil.which("mpirun") or str(Path(sys.executable).parent / "mpirun")
    command = [mpirun, "--bind-to", "none", "--oversubscribe", "-n", "2", sys.executable]
    command += ["-m", "preprocessing.pretrain", *options, "--deduplicate"]
    command += ["--output", "s3://corpus/ranks/c4", "--work_dir", tmp_path / "work"]
    environment = {**os.environ, **AS_ROOT}
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    made = stored("s3://corpus/ranks/c4")
    manifests = [json.loads(files.pop("manifest.json")) for files in (made, dict(local))]
    assert manifests[0]["counts"] == manifests[1]["counts"]
    assert made == {name: content for name, content in local.items() if name != "manifest.json"}


def test_a_job_killed_in_an_upload_leaves_no_manifest_and_is_resumed(
    faults, exit_of, options, local, tmp_path
):
    url = "s3://corpus/killed/c4"
    arguments = [*options, "--output", url, "--work_dir", tmp_path / "work"]
    command = [sys.executable, "-m", "preprocessing.pretrain", *arguments]
    faults.order(lambda: process.kill(), "PUT", "00003-00000.tar")
    process = subprocess.Popen(command, cwd=ROOT)
    assert process.wait(300) == -signal.SIGKILL
    left = sizes(store_path(url))
    assert "c4-00002-00000.tar" in left
    assert not {"c4-00003-00000.tar", "manifest.json"} & left.keys()
    before = len(faults.requests)
    assert exit_of(*arguments)[0] == 0
    assert stored(url) == local
    puts = [path for method, path, _ in faults.requests[before:] if method == "PUT"]
    assert tars(puts) == tars(local) - 3


def test_an_upload_that_fails_is_one_line_and_the_job_resumes(
    server, exit_of, options, local, tmp_path
):
    arguments = (*options, "--output", "s3://corpus/failed/c4", "--work_dir", tmp_path / "work")
    server.faults.order("throttled", "PUT", "00002-00000.tar", times=100)
    status, _, errors = exit_of(*arguments)
    server.faults._waiting.clear()
    assert status == 2
    last = errors.splitlines()[-1]
    assert last.startswith("error: s3://corpus/failed/c4/c4-00002-00000.tar: Please reduce")
    assert "manifest.json" not in sizes(store_path("s3://corpus/failed/c4"))
    assert exit_of(*arguments)[0] == 0
    assert stored("s3://corpus/failed/c4") == local


def test_a_lost_or_changed_object_is_made_again(server, exit_of, options, local, tmp_path):
    url = "s3://corpus/lost/c4"
    arguments = (*options, "--output", url, "--work_dir", tmp_path / "work")
    assert exit_of(*arguments)[0] == 0
    (tmp_path / "short").write_bytes(b"short")
    put(tmp_path / "short", store_path(f"{url}/c4-00001-00000.tar"))
    assert exit_of(*arguments)[0] == 0
    assert stored(url) == local

    status, _, errors = exit_of(*options, "--output", url, "--work_dir", tmp_path / "other")
    assert status == 2 and "already holds a dataset" in errors


def test_a_foreign_writer_is_noticed_before_the_manifest(
    server, exit_of, options, tmp_path, monkeypatch
):
    url = "s3://corpus/foreign/c4"
    (tmp_path / "short").write_bytes(b"short")
    build = run.build_manifest

    def meanwhile(job):
        put(tmp_path / "short", store_path(f"{url}/c4-00001-00000.tar"))
        return build(job)

    monkeypatch.setattr(run, "build_manifest", meanwhile)
    status, _, errors = exit_of(*options, "--output", url, "--work_dir", tmp_path / "work")
    assert status == 2 and "is not there as this job left it" in errors
    assert "manifest.json" not in sizes(store_path(url))


def test_a_dry_run_writes_nothing(server, exit_of, options, tmp_path):
    before = len(server.faults.requests)
    url, work = "s3://corpus/dry/c4", tmp_path / "work"
    status, output, _ = exit_of(*options, "--output", url, "--work_dir", work, "--dry_run")
    assert status == 0 and output.startswith("ready: c4, inputs: 3 ")
    assert "PUT" not in {method for method, *_ in server.faults.requests[before:]}
    assert not work.exists()


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--output", "s3://corpus/x"], "needs --work_dir DIR"),
        (["--output", "https://host/x", "--work_dir", "w"], "nothing can be written"),
        (["--output", "out", "--work_dir", "w"], "--work_dir is for an --output on a store"),
        (["--output", "s3://none/x", "--work_dir", "w"], "bucket"),
        (["--output", "out", "--input", "s3://corpus/c4"], "is a folder; give its files"),
        (["--output", "out", "--input", "s3://corpus/none*"], "no file matches --input"),
    ],
)
def test_refusals_are_one_line(server, exit_of, options, tmp_path, monkeypatch, more, error):
    monkeypatch.chdir(tmp_path)
    status, _, errors = exit_of(*options, *more)
    assert status == 2 and error in errors and errors.count("\n") == 1


def test_archives_and_tables_on_a_store(server, exit_of, tokenizer_path, tmp_path):
    """A zip and a Parquet file are read by their ends, a tar as it comes; a zip of splits too."""
    pairs = [{"id": str(k), "document": f"Document {k}.", "summary": "The old mill."} for k in "ab"]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        archive.write(tmp_path / "train.jsonl", "train.jsonl")
        archive.writestr("test.jsonl", b"{}\n")
    with tarfile.open(tmp_path / "pairs.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "train.jsonl", "train.jsonl")
    names = ["pairs.zip", "pairs.tar.gz", "train.jsonl"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(pairs), tmp_path / "pairs.parquet")
    for name in (*names, "pairs.parquet"):
        put(tmp_path / name, store_path(f"s3://corpus/pairs/{name}"))
        made = []
        for place in (tmp_path / name, f"s3://corpus/pairs/{name}"):
            output = tmp_path / f"{len(made)}-{name}" / "pairs"
            command = ["--dataset", "jsonl", "--input", place, "--tokenizer", tokenizer_path]
            status, _, errors = exit_of(*command, "--output", output, main=finetune.main)
            assert status == 0, errors
            made.append({path.name: path.read_bytes() for path in output.glob("[a-z]*")})
        assert made[0] == made[1]
