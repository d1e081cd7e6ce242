"""`benchmark.py data`, and its result on real C4: full micro-batches, balanced ranks."""

import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch

from pipeline import benchmark
from pipeline.benchmarking import throttled_mount
from pipeline.benchmarking.data_loading import Load
from pipeline.benchmarking.throttled_mount import throttled

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "../shared/data"


@pytest.mark.slow
def test_micro_batches_of_real_c4_are_full_and_even(tmp_path):
    """Batch 256, 16 ranks, accumulation 2."""
    if not (SHARED / "c4").is_dir():
        pytest.skip("no sample of C4 in ../shared/data")
    command = [sys.executable, ROOT / "preprocessing/pretrain.py", "--output", tmp_path / "shards"]
    command += ["--input", SHARED / "c4/*.json.gz"]
    command += ["--tokenizer", SHARED / "tokenizers/t5_spiece.model"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    arguments = ["data", "--data", str(tmp_path / "shards"), "--output", str(tmp_path)]
    assert benchmark.main([*arguments, "--steps", "20"]) == 0
    found = json.loads((tmp_path / "data.json").read_text())
    assert (found["batch_size"], found["ranks"], found["accumulation"]) == (256, 16, 2)
    assert found["samples"] > 500
    assert found["source_fill"] >= 0.94  # 0.955 of exact lengths
    assert found["load"] >= 0.85
    assert found["target_fill"] >= 0.7


def test_the_figures_are_printed_and_kept(dataset_folder, tmp_path, capsys):
    arguments = ["data", "--data", str(dataset_folder), "--output", str(tmp_path)]
    arguments += ["--batch_size", "12", "--ranks", "2", "--accumulation", "3", "--steps", "4"]
    assert benchmark.main(arguments) == 0
    found = json.loads((tmp_path / "data.json").read_text())
    assert found["command"] == "data" and found["samples"] == 26
    assert found["samples_per_s"] > 0
    assert all(0 < found[name] <= 1 for name in ("source_fill", "target_fill", "load"))
    text = capsys.readouterr().out
    assert "26 samples; batches of 12 for 2 ranks x 3 micro-batches" in text
    assert f"{found['source_fill']:.1%} of source positions" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch_size", "3"], "--batch_size 3 is less than 2 ranks x 2"),
        (["--data", "nowhere"], "no dataset folder nowhere"),
        (["--batch_size", "4", "--latency_ms", "3"], "--latency_ms throttles the loop of"),
        (["--batch_size", "4", "--steps", "1", "--step_seconds", "1"], "--steps 1: waiting is"),
    ],
)
def test_invalid_arguments_are_one_line(arguments, message, dataset_folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        options = ["--ranks", "2", "--accumulation", "2"]
        benchmark.main(["data", "--data", str(dataset_folder), *options, *arguments])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


SMALL = ["--batch_size", "8", "--ranks", "2", "--accumulation", "2", "--steps", "3"]


def test_waiting_is_measured_on_this_file_system(dataset_folder, tmp_path, capsys):
    arguments = ["data", "--data", str(dataset_folder), "--output", str(tmp_path), *SMALL]
    assert benchmark.main([*arguments, "--step_seconds", "0.01"]) == 0
    found = json.loads((tmp_path / "data.json").read_text())["waiting"]
    assert all(0 < found[name]["share"] < 1 for name in ("as_set", "one_by_one"))
    ratio = found["as_set"]["waited_s"] / found["one_by_one"]["waited_s"]
    assert found["ratio"] == pytest.approx(ratio)
    assert found["latency_ms"] == 0 and found["bandwidth_mb_s"] is None
    text = capsys.readouterr().out
    assert "waiting for data of this file system, in steps of 0.01 s:" in text
    assert f"{found['as_set']['share']:.1%} of the time" in text


@pytest.fixture
def mount(dataset_folder):
    """The dataset behind 2 ms and 50 MB/s."""
    try:
        with throttled(dataset_folder, 2e-3, 50e6) as folder:
            yield folder
    except ValueError as error:
        pytest.skip(str(error))


def test_a_throttled_folder_holds_the_same_files(dataset_folder, mount):
    for path in dataset_folder.iterdir():
        assert (mount / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(FileNotFoundError):
        (mount / "nothing").stat()
    with pytest.raises(OSError, match="Read-only"):
        (mount / "new").touch()
    batches = Load(dataset_folder, 8, 2, 2, (0, 0))
    one, two = batches.of_rank(0).step(1), batches.of_rank(0, mount).step(1)
    for a, b in zip(one.micro_batches, two.micro_batches, strict=True):
        assert torch.equal(a.input_ids, b.input_ids) and torch.equal(a.labels, b.labels)


def test_a_mount_ends_with_its_process_and_is_nobody_elses(dataset_folder, mount):
    script = f"""
import os, signal
from pathlib import Path
from pipeline.benchmarking.throttled_mount import throttled

with throttled(Path({str(dataset_folder)!r}), 0.001, 1e6) as folder:
    assert (folder / "manifest.json").is_file()
    server = Path("/proc/self/task").resolve() / str(os.getpid()) / "children"
    print(server.read_text(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == -signal.SIGKILL, run.stderr
    server = Path("/proc") / run.stdout.strip()
    deadline = time.monotonic() + 30  # only against a hang
    while (server / "stat").exists() and (server / "stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the server outlives its mount"
        time.sleep(0.01)
    assert "throttled" not in Path("/proc/self/mounts").read_text()


def test_waiting_is_measured_on_a_throttled_file_system(dataset_folder, mount, tmp_path, capsys):
    arguments = ["data", "--data", str(dataset_folder), "--output", str(tmp_path), *SMALL]
    arguments += ["--step_seconds", "0.01", "--latency_ms", "2", "--bandwidth_mb_s", "50"]
    assert benchmark.main(arguments) == 0
    found = json.loads((tmp_path / "data.json").read_text())["waiting"]
    assert (found["latency_ms"], found["bandwidth_mb_s"]) == (2, 50)
    assert "throttled to 2 ms a request and 50 MB/s, in steps of 0.01 s:" in capsys.readouterr().out


def test_a_mount_that_is_not_allowed_is_one_line(dataset_folder, monkeypatch, capsys):
    """A refusal made up: root, as whom these tests may run, is refused nothing."""

    def refused(*_):
        raise PermissionError(1, "Operation not permitted", "mount")

    monkeypatch.setattr(throttled_mount, "_libc", refused)
    arguments = ["data", "--data", str(dataset_folder), *SMALL, "--step_seconds", "1"]
    with pytest.raises(SystemExit, match="2"):
        benchmark.main([*arguments, "--latency_ms", "30"])
    error = capsys.readouterr().err
    assert "no throttled file system" in error and "unshare --map-root-user --mount" in error
    assert error.count("\n") == 1


def test_a_link_delays_every_answer_and_passes_bytes_in_turn(monkeypatch):
    """By a clock that stands still: 2 MB at 1 MB/s take two seconds, the next comes after it."""
    slept = []
    clock = types.SimpleNamespace(monotonic=lambda: 100.0, sleep=slept.append)
    monkeypatch.setattr(throttled_mount, "time", clock)
    link = throttled_mount.SharedLink(latency=0.5, bandwidth=1e6)
    for size in (0, 2_000_000, 1_000_000, 0):
        link.wait(size)
    assert slept == [0.5, 2.5, 3.5, 3.5]


def test_every_answer_waits_for_the_link(dataset_folder):
    """The test asks as the kernel does: for a name, then for some bytes of that file."""
    waited = []
    kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = types.SimpleNamespace(wait=waited.append)
    server = throttled_mount.Server(device.fileno(), dataset_folder, link)
    thread = threading.Thread(target=server.serve)
    thread.start()

    def ask(operation, file, body):
        header = throttled_mount.HEADER.pack(40 + len(body), operation, 7, file, 0, 0, 0, 0)
        kernel.send(header + body)
        answer = kernel.recv(2**16)
        assert struct.unpack_from("<IiQ", answer) == (len(answer), 0, 7)
        return answer[16:]

    entry = ask(throttled_mount.LOOKUP, throttled_mount.ROOT, b"manifest.json\0")
    (number,) = struct.unpack_from("<Q", entry)
    content = ask(throttled_mount.READ, number, struct.pack("<QQIIQII", 0, 3, 11, 0, 0, 0, 0))
    assert content == (dataset_folder / "manifest.json").read_bytes()[3:14]
    assert waited == [len(entry), 11]
    kernel.close()
    thread.join(30)
    assert not thread.is_alive()
    device.close()
