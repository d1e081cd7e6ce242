"""Jobs as a cluster runs them: many ranks, several at once, one bad rank; always the same bytes."""

import os
import shutil
import signal
import time

import pytest
from jobs import arguments, kill, launch, processes, start
from made_up_text import c4_lines, tree, write_lines

from pipeline.shards import Dataset
from preprocessing import pretrain

WATCHED = """
import os, time
def log(text, url):
    with open(os.environ["LOG"], "a") as file:
        file.write(url + "\\n")
    time.sleep(0.002)
    return True
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_make_the_same_bytes(undisturbed, corpus, tokenizer_path, tmp_path, ranks):
    result = launch(*arguments(corpus, tokenizer_path, tmp_path / "c4"), ranks=ranks)
    assert result.returncode == 0, result.stderr
    assert tree(tmp_path / "c4") == tree(undisturbed)
    assert result.stdout.count("samples of") == 1  # rank 0 speaks for all


@pytest.mark.slow
def test_blocks_of_a_large_file_are_items(corpus, tokenizer_path, tmp_path):
    lines = [line for number in range(3) for line in c4_lines(number, 40)]
    write_lines(tmp_path / "c4-all.jsonl", lines)
    results = [
        launch(
            *arguments(tmp_path, tokenizer_path, tmp_path / name / "c4", "--block_size", 4096),
            ranks=ranks,
        )
        for name, ranks in (("one", 0), ("three", 3))
    ]
    assert [result.returncode for result in results] == [0, 0], results[1].stderr
    assert tree(tmp_path / "one") == tree(tmp_path / "three")
    blocks = Dataset(tmp_path / "one/c4")
    assert len(blocks.shards) > 10
    assert blocks.manifest["counts"]["documents"] == 120
    assert len({sample.metadata["url"] for sample in blocks}) == len(blocks)


@pytest.mark.slow
def test_two_jobs_share_the_work(tokenizer_path, tmp_path):
    for number in range(6):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number, 150))
    (tmp_path / "watch.py").write_text(WATCHED)
    log = tmp_path / "log"
    environment = {"PYTHONPATH": str(tmp_path), "LOG": str(log)}
    output = tmp_path / "shared/c4"
    options = arguments(tmp_path, tokenizer_path, output, "--accept", "watch:log")
    # One begins, another on two ranks joins it.
    running = [start(*options, **environment), start(*options, ranks=2, **environment)]
    ends = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], ends
    urls = log.read_text().split()
    assert len(urls) == len(set(urls)) == 6 * 150  # each document once, by one of them
    alone = arguments(tmp_path, tokenizer_path, tmp_path / "alone/c4", "--accept", "watch:log")
    assert launch(*alone, **environment).returncode == 0
    assert tree(output) == tree(tmp_path / "alone/c4")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 2])
def test_terminated_it_gives_its_claims_back(tokenizer_path, tmp_path, ranks):
    for number in range(4):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number, 200))
    (tmp_path / "watch.py").write_text(WATCHED)
    environment = {"PYTHONPATH": str(tmp_path), "LOG": str(tmp_path / "log")}
    output = tmp_path / "out/c4"
    options = arguments(tmp_path, tokenizer_path, output, "--accept", "watch:log")
    process = start(*options, ranks=ranks, **environment)
    while not (output / ".items/00000.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    kill(output, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    if ranks:  # mpirun itself was terminated and passes nothing on
        assert process.returncode != 0
    else:
        assert "the same command goes on from here" in errors
        assert process.returncode == 143
        assert not list(output.rglob(".*.tmp"))
        assert not list(output.rglob("*.claim-*"))
    assert not (output / "manifest.json").exists()
    assert launch(*options, **environment).returncode == 0
    assert len(Dataset(output).shards) == 4


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
def test_a_killed_rank_ends_the_job(tokenizer_path, tmp_path):
    for number in range(3):
        write_lines(tmp_path / f"c4-{number}.jsonl", c4_lines(number, 400))
    (tmp_path / "watch.py").write_text(WATCHED)
    environment = {"PYTHONPATH": str(tmp_path), "LOG": str(tmp_path / "log")}
    output = tmp_path / "out/c4"
    options = arguments(tmp_path, tokenizer_path, output, "--accept", "watch:log")
    process = start(*options, ranks=3, **environment)
    while not (tmp_path / "log").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(processes(output)[-1], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not processes(output)
    assert launch(*options, **environment).returncode == 0


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


def test_a_damaged_input_is_fetched_again(command, corpus, tokenizer_path, undisturbed, tmp_path):
    """Only its own shard waited for it; what was made of others stays."""
    inputs = shutil.copytree(corpus, tmp_path / "corpus")
    whole = (inputs / "c4-1.json.gz").read_bytes()
    (inputs / "c4-1.json.gz").write_bytes(whole[:-100])
    options = arguments(inputs, tokenizer_path, tmp_path / "c4")
    with pytest.raises(ValueError, match=r"c4-1\.json\.gz is corrupt or cut short"):
        command(pretrain.main, *options)
    made = (tmp_path / "c4/c4-00000-00000.tar").stat().st_ino
    (inputs / "c4-1.json.gz").write_bytes(whole)
    command(pretrain.main, *options)
    assert tree(tmp_path / "c4") == tree(undisturbed)
    assert (tmp_path / "c4/c4-00000-00000.tar").stat().st_ino == made
    # One whose shard is made may not change, even where its size stays.
    (inputs / "c4-2.jsonl").write_text((inputs / "c4-2.jsonl").read_text().replace("mill", "hill"))
    with pytest.raises(ValueError, match=r"input 2 was c4-2\.jsonl, .*, is c4-2\.jsonl"):
        command(pretrain.main, *options)


@pytest.mark.slow
def test_interrupted_it_says_so(tokenizer_path, tmp_path):
    write_lines(tmp_path / "c4-0.jsonl", c4_lines(0, 400))
    (tmp_path / "watch.py").write_text(WATCHED)
    environment = {"PYTHONPATH": str(tmp_path), "LOG": str(tmp_path / "log")}
    options = arguments(tmp_path, tokenizer_path, tmp_path / "out", "--accept", "watch:log")
    process = start(*options, **environment)
    while not (tmp_path / "log").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("interrupted; the same command goes on from here\n")


def test_a_lost_shard_is_made_again(command, undisturbed, corpus, tokenizer_path, tmp_path):
    output = shutil.copytree(undisturbed, tmp_path / "c4")
    (output / "c4-00001-00000.tar").unlink()
    with pytest.raises(ValueError, match="1 of 3 items"):
        command(pretrain.main, *arguments(corpus, tokenizer_path, output), "--finish")
    assert not (output / "manifest.json").exists()  # no longer complete, and it says so
    command(pretrain.main, *arguments(corpus, tokenizer_path, output))
    assert tree(output) == tree(undisturbed)


@pytest.mark.slow
def test_user_errors_are_one_line_and_status_2(corpus, tokenizer_path, tmp_path):
    output = tmp_path / "out"
    result = launch(*arguments(corpus, tmp_path / "none.model", output))
    assert result.returncode == 2
    assert result.stderr.startswith("error: no tokenizer at")
    assert result.stderr.count("\n") == 1
    result = launch(*arguments(corpus, tokenizer_path, output, "--strategy", "best"))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    # Tasks that MPI does not join would each do everything.
    alone = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}
    result = launch(*arguments(corpus, tokenizer_path, output), **alone)
    assert result.returncode == 2
    assert "mpirun --bind-to none -n 4" in result.stderr
    assert not output.exists()
