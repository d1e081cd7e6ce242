"""Kills, damage and full disks: what was saved stays whole, and the run goes on from it."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from fork_server import living
from trainer_runs import UNBROKEN, assert_same_weights, metrics, weights

from pipeline.common.files import hold_lock
from pipeline.distributed.world import World
from pipeline.shards import file_sha256
from pipeline.training.checkpoint import Checkpoints

OPTIONS = ("--model.dropout", "0.1", "--train.validation_rouge", "true")
ALONE = World(0, 1, 0, torch.device("cpu"))


@pytest.mark.slow
def test_kills_leave_the_weights_of_the_unbroken_run(unbroken, trainer, tmp_path):
    run = tmp_path / "run"
    left = run / "checkpoints"
    for fault, there, half in (
        ("save:1:4:kill", None, "step-00000004.tmp"),
        ("update:0:7:kill-all", "step-00000005", None),
        ("save:0:8:kill-all", "step-00000005", "step-00000008.tmp"),
        ("named:0:8:kill-all", "step-00000008", None),
        ("update:1:9:kill", "step-00000008", None),
        ("validation:0:10:kill-all", "step-00000010", None),
    ):
        process = trainer.start(run, *OPTIONS, fault=fault)
        text, _ = process.communicate(timeout=600)
        assert process.returncode != 0, text
        names = sorted(path.name for path in left.iterdir() if path.is_dir())
        assert (half in names) if half else not any("tmp" in name for name in names), fault
        whole = [name for name in names if "." not in name]
        assert (whole[-1] if whole else None) == there, fault
        deadline = time.monotonic() + 10
        while living(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert living(process.pid) == []
        lock = hold_lock(run / ".lock")
        assert lock is not None
        lock.close()
    status, text = trainer.run(run, *OPTIONS)
    assert status == 0 and f"{run} resumes after step 10\n" in text, text
    assert metrics(run) == metrics(unbroken)
    assert_same_weights(run, unbroken)
    assert not list(left.glob("*.tmp"))


@pytest.mark.slow
def test_damaged_checkpoints_fall_back_to_an_older_one(unbroken, trainer, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unbroken, run, symlinks=True)
    (run / "FINISHED").unlink()
    whole, garbled, cut_short = sorted((run / "checkpoints").glob("step-*"))
    (cut_short / "model/model.safetensors").write_bytes(b"cut short")
    moments = garbled / "optimizer/00001-of-00002.safetensors"
    content = bytearray(moments.read_bytes())
    content[-100] ^= 1
    moments.write_bytes(content)
    status, text = trainer.run(run, *UNBROKEN)
    assert status == 0, text
    assert f"{cut_short} is incomplete (model/model.safetensors has 9 bytes of" in text
    assert f"{garbled} is incomplete (optimizer/{moments.name} does not match its CRC" in text
    assert f"resumes after step {int(whole.name[-8:])}\n" in text
    assert metrics(run) == metrics(unbroken)
    assert_same_weights(run, unbroken)


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run(
        ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
    ).returncode
    != 0
    if shutil.which("unshare")
    else True,
    reason="a small file system cannot be mounted here",
)
def test_a_full_disk_leaves_the_old_checkpoints_whole(unbroken, trainer, tmp_path):
    """The disk of 2 processes has room for half a checkpoint more when they save the second."""
    disk = tmp_path / "disk"
    disk.mkdir()
    run = disk / "run"
    size = sum(path.stat().st_size for path in (unbroken / "last/").rglob("*") if path.is_file())
    script = f"""
        mount -t tmpfs -o size=50m none {disk}
        "$@" --train.max_steps 4 || exit 1
        used=$(df --output=used -B1 {disk} | tail -1)
        mount -o remount,size=$((used + {size // 2})) {disk}
        "$@"; echo "status $?"
        ls {run}/checkpoints
        mount -o remount,size=50m {disk}
        "$@" && cp -r {run} {tmp_path}/made
    """
    options = ("--model.dropout", "0.1", "--train.validate_every", "100")
    command = trainer.command(run, *OPTIONS, *options)
    result = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *command],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "status 1" in result.stdout
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and f"no checkpoint could be written to {run}/checkpoints" in errors[0]
    assert "No space left on device" in errors[0]
    assert "Traceback" not in result.stderr
    assert ".tmp" not in result.stdout  # what could not be finished makes no room scarce
    assert result.stdout.count("resumes after step 4") == 2
    assert weights(tmp_path / "made") == weights(unbroken)


@pytest.mark.slow
def test_other_data_under_the_same_path_is_refused_in_one_line(
    unbroken, trainer, dataset_folder, validation_folder, tmp_path
):
    other = tmp_path / "other-tokenizer"
    shutil.copytree(dataset_folder, other)
    with (other / "tokenizer.model").open("ab") as file:
        file.write(b"\x12\x00")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["tokenizer"]["sha256"] = digest = file_sha256(other / "tokenizer.model")
    (other / "manifest.json").write_text(json.dumps(manifest))
    run = tmp_path / "run"
    shutil.copytree(unbroken, run, symlinks=True)
    for folder, named in (
        (other, f"now {digest}; dataset was "),
        (validation_folder, "holds a different run (dataset was "),
    ):
        status, text = trainer.run(
            run, *OPTIONS, "--data.train", str(folder), "--data.validation", str(folder),
            processes=1,
        )  # fmt: skip
        assert status == 2, text
        (error,) = [line for line in text.splitlines() if line.startswith("error: ")]
        assert named in error and "another --output" in error
        assert "Traceback" not in text


def checkpoints(run: Path, **identity: object) -> Checkpoints:
    return Checkpoints(run, ALONE, run, identity, {}, 2)


def test_a_folder_of_damaged_checkpoints_is_refused(tmp_path, capsys):
    folder = tmp_path / "run/checkpoints/step-00000004"
    folder.mkdir(parents=True)
    for content in (None, "{", "[]", '{"step": 4}', '{"files": {"gone": [1, 2]}, "updates": 4}'):
        if content is not None:
            (folder / "COMPLETE").write_text(content)
        with pytest.raises(ValueError, match="no intact checkpoint"):
            checkpoints(tmp_path / "run")
        assert f"{folder} is incomplete (" in capsys.readouterr().err


def test_a_run_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"output .*file/run: Not a directory; fix it or give"):
        checkpoints(tmp_path / "file" / "run")


def test_a_refused_run_unlocks_its_folder(tmp_path):
    """At once, not when the garbage collector finds it: the next one gives the same reason."""
    (tmp_path / "run/checkpoints/step-00000004").mkdir(parents=True)
    with pytest.raises(ValueError, match="no intact checkpoint") as first:
        checkpoints(tmp_path / "run")
    with pytest.raises(ValueError, match="no intact checkpoint"):
        checkpoints(tmp_path / "run")
    assert first.tb is not None  # it holds the first attempt's frames, and its lock file


def test_what_differs_is_named(tmp_path):
    folder = tmp_path / "run/checkpoints/step-00000004"
    folder.mkdir(parents=True)
    identity = {"seed": 0, "architecture.d_ff": 32, "architecture.name": None}
    marker = {"step": 4, "updates": 4, "files": {}, "identity": identity}
    (folder / "COMPLETE").write_text(json.dumps(marker))
    same = {"seed": 0, "architecture": {"d_ff": 32, "name": None}}
    assert checkpoints(tmp_path / "run", **same).steps_done == 4
    with pytest.raises(ValueError, match=r"\(architecture.d_ff was 32, now 48\)"):
        checkpoints(tmp_path / "run", **{**same, "architecture": {"d_ff": 48, "name": None}})
