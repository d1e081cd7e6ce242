"""Jobs as a cluster runs them: many ranks, several at once, one failing; always the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import LIMIT_SECONDS, arguments, kill, launch, processes, start
from made_up_text import c4_lines, tree, write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain
from preprocessing.jobs.leases import this_process

LOGGED = """
import os, time
def log(text, url):
    with open(os.environ["LOG"], "a") as file:
        file.write(url + "\\n")
    time.sleep(float(os.environ["DELAY"]))
    return True
"""


class LoggedJob:
    """A job in `folder` whose filter logs each document's URL and takes 2 ms per document."""

    def __init__(self, folder: Path, tokenizer: Path, name: str = "c4") -> None:
        (folder / "logged.py").write_text(LOGGED)
        self.log = folder / "log"
        self.output = folder / "out" / name
        self.options = arguments(folder, tokenizer, self.output, "--accept", "logged:log")
        self.environment = {"PYTHONPATH": str(folder), "LOG": str(self.log), "DELAY": "0.002"}

    def start(self, ranks: int = 0) -> subprocess.Popen:
        return start(*self.options, ranks=ranks, **self.environment)

    def wait_for(self, path: Path, process: subprocess.Popen) -> None:
        """Wait for a file that the running job writes."""
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.02)


@pytest.fixture
def logged_job(command, tokenizer_path, tmp_path, monkeypatch) -> Callable[..., LoggedJob]:
    """`logged_job(name)`: a LoggedJob; its options also run in this process, without delay."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "logged", raising=False)
    monkeypatch.setenv("LOG", str(tmp_path / "log-here"))
    monkeypatch.setenv("DELAY", "0")
    return lambda name="c4": LoggedJob(tmp_path, tokenizer_path, name)


@pytest.mark.slow
def test_more_ranks_than_items_make_the_same_bytes(undisturbed, corpus, tokenizer_path, tmp_path):
    result = launch(*arguments(corpus, tokenizer_path, tmp_path / "c4"), ranks=5)
    assert result.returncode == 0, result.stderr
    assert tree(tmp_path / "c4") == tree(undisturbed)
    assert result.stdout.count("samples from") == 1  # rank 0 prints for all


@pytest.mark.slow
def test_blocks_of_a_large_file_are_items(command, tokenizer_path, tmp_path):
    lines = [line for number in range(3) for line in c4_lines(number, 40)]
    write_lines(tmp_path / "c4-all.jsonl", lines)
    single, ranks = (
        arguments(tmp_path, tokenizer_path, tmp_path / name / "c4", "--block_size", 4096)
        for name in ("single", "ranks")
    )
    command(pretrain.main, *single)
    result = launch(*ranks, ranks=2)
    assert result.returncode == 0, result.stderr
    assert tree(tmp_path / "single") == tree(tmp_path / "ranks")
    blocks = Dataset(tmp_path / "ranks/c4")
    assert len(blocks.shards) > 10
    assert blocks.manifest["counts"]["documents"] == 120
    assert len({sample.metadata["url"] for sample in blocks}) == len(blocks)


@pytest.mark.slow
def test_two_jobs_share_the_work(command, logged_job, tmp_path):
    for number in range(6):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number, 150))
    job = logged_job()
    running = [job.start(), job.start(ranks=2)]  # the second joins the first
    ends = [process.communicate(timeout=LIMIT_SECONDS) for process in running]
    assert [process.returncode for process in running] == [0, 0], ends
    urls = job.log.read_text().split()
    assert len(urls) == len(set(urls)) == 6 * 150  # each document once, by one of them
    shared = job.output.rename(tmp_path / "shared")
    command(pretrain.main, *job.options)
    assert tree(shared) == tree(job.output)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_terminated_job_releases_its_leases_and_resumes(command, logged_job, tmp_path, ranks):
    for number in range(4):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number, 200))
    job = logged_job()
    process = job.start(ranks)
    job.wait_for(job.output / ".items/00000.json", process)
    kill(job.output, signal.SIGTERM)
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert "Traceback" not in errors
    if ranks:  # mpirun itself was terminated and does not pass the status on
        assert process.returncode != 0
    else:
        assert "the same command resumes from here" in errors
        assert process.returncode == 143
        assert not list(job.output.rglob(".*.tmp"))
        assert not list(job.output.rglob("*.claim-*"))
    assert not (job.output / "manifest.json").exists()
    command(pretrain.main, *job.options)
    assert len(Dataset(job.output).shards) == 4


@pytest.mark.slow
@pytest.mark.parametrize("bad", [0, 2])
def test_a_failing_rank_ends_the_job(tokenizer_path, tmp_path, bad):
    for number in range(3):
        path = write_lines(tmp_path / f"c4-{number}.json.gz", c4_lines(number, 200))
        if number == bad:
            path.write_bytes(path.read_bytes()[:-500])
    result = launch(*arguments(tmp_path, tokenizer_path, tmp_path / "out"), ranks=3)
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("error: ") == 1
    assert f"c4-{bad}.json.gz is corrupt" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out/manifest.json").exists()


@pytest.mark.slow
def test_a_killed_rank_ends_the_job(command, logged_job, tmp_path):
    for number in range(3):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number, 400))
    job = logged_job()
    process = job.start(ranks=3)
    job.wait_for(job.log, process)
    os.kill(processes(job.output)[-1], signal.SIGKILL)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode != 0
    assert not processes(job.output)
    command(pretrain.main, *job.options)
    assert len(Dataset(job.output).shards) == 3


@pytest.mark.slow
def test_an_interrupted_job_says_that_it_resumes(logged_job, tmp_path):
    write_lines(tmp_path / "c4-0.jsonl", c4_lines(0, 400))
    job = logged_job()
    process = job.start()
    job.wait_for(job.log, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert errors.endswith("interrupted; the same command resumes from here\n")


def test_finish_checks_and_writes_the_manifest(
    command, undisturbed, corpus, tokenizer_path, tmp_path
):
    output = shutil.copytree(undisturbed, tmp_path / "c4")
    (output / "manifest.json").unlink()
    (output / ".items/00001.json").unlink()
    same = arguments(corpus, tokenizer_path, output)
    with pytest.raises(ValueError, match=r"1 of 3 items are not made yet, the first from .*c4-1"):
        command(pretrain.main, *same, "--finish")
    assert not (output / "manifest.json").exists()
    shutil.copy(undisturbed / ".items/00001.json", output / ".items")
    command(pretrain.main, *same, "--finish")
    assert tree(output) == tree(undisturbed)


@pytest.mark.parametrize("complete", [True, False])
def test_nothing_stays_of_a_job_killed_at_its_manifest(
    command, undisturbed, corpus, tokenizer_path, tmp_path, complete
):
    output = shutil.copytree(undisturbed, tmp_path / "c4")
    (output / ".items/manifest/00000.claim-0").write_text(
        json.dumps({**this_process(), "started": "1"})
    )
    (output / ".items/manifest/.00000.claim-1.7.tmp").touch()
    if not complete:
        (output / "manifest.json").unlink()
    command(pretrain.main, *arguments(corpus, tokenizer_path, output))
    assert tree(output) == tree(undisturbed)


def test_a_damaged_input_may_be_replaced(command, corpus, tokenizer_path, undisturbed, tmp_path):
    """Only its own shard is missing; the shards of other inputs stay."""
    inputs = shutil.copytree(corpus, tmp_path / "corpus")
    whole = (inputs / "c4-1.json.gz").read_bytes()
    (inputs / "c4-1.json.gz").write_bytes(whole[:-100])
    options = arguments(inputs, tokenizer_path, tmp_path / "c4")
    with pytest.raises(ValueError, match=r"c4-1\.json\.gz is corrupt or truncated"):
        command(pretrain.main, *options)
    made = (tmp_path / "c4/c4-00000-00000.tar").stat().st_ino
    (inputs / "c4-1.json.gz").write_bytes(whole)
    command(pretrain.main, *options)
    assert tree(tmp_path / "c4") == tree(undisturbed)
    assert (tmp_path / "c4/c4-00000-00000.tar").stat().st_ino == made
    # An input whose shard is made must not change, even if its size stays the same.
    (inputs / "c4-2.jsonl").write_text((inputs / "c4-2.jsonl").read_text().replace("mill", "hill"))
    with pytest.raises(ValueError, match=r"input 2 was c4-2\.jsonl, .*, now c4-2\.jsonl"):
        command(pretrain.main, *options)


def test_a_lost_shard_is_made_again(command, undisturbed, corpus, tokenizer_path, tmp_path):
    output = shutil.copytree(undisturbed, tmp_path / "c4")
    (output / "c4-00001-00000.tar").unlink()
    with pytest.raises(ValueError, match="1 of 3 items"):
        command(pretrain.main, *arguments(corpus, tokenizer_path, output), "--finish")
    assert not (output / "manifest.json").exists()  # the folder is no longer complete
    command(pretrain.main, *arguments(corpus, tokenizer_path, output))
    assert tree(output) == tree(undisturbed)


@pytest.mark.slow
def test_user_errors_are_one_line_and_status_2(exit_of, corpus, tokenizer_path, tmp_path):
    output = tmp_path / "out"
    status, _, errors = exit_of(
        pretrain.main, *arguments(corpus, tokenizer_path, output, "--strategy", "best")
    )
    assert (status, errors.count("\n")) == (2, 1)
    # A process of its own: the status is the program's.
    result = launch(*arguments(corpus, tmp_path / "none.model", output))
    assert result.returncode == 2
    assert result.stderr.startswith("error: no tokenizer at")
    assert result.stderr.count("\n") == 1
    assert not output.exists()


@pytest.mark.slow
def test_tasks_that_mpi_does_not_connect_are_refused(corpus, tokenizer_path, tmp_path):
    """Each of them would do all the work."""
    alone = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}
    result = launch(*arguments(corpus, tokenizer_path, tmp_path / "out"), **alone)
    assert result.returncode == 2
    assert "mpirun --bind-to none -n 4" in result.stderr
    assert not (tmp_path / "out").exists()
