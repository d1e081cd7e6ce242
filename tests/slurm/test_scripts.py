"""Each job script alone: its checks, where it can be submitted from, how it fails."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interruptions import MANY, end_rank_one, finish_soon, wait_for_restart
from small_site import ROOT, SIZES, SLOWLY, submit, wait_until_training


@pytest.fixture(scope="module")
def long_settings(site) -> dict[str, str]:
    """Settings for a pre-training that does not finish."""
    site.write_recipe("pretrain_c4", "long-recipes", max_steps=MANY)
    return {"RECIPES": str(site.folder / "long-recipes")}


def test_a_task_that_dies_before_any_checkpoint_ends_the_job_with_its_name(
    cluster, site, long_settings
):
    settings = site.settings("dies", **long_settings)
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings, "--train.checkpoint_every", "1000000")
    wait_until_training(cluster, job, run)
    end_rank_one(cluster, "KILL")
    assert cluster.wait(job) == "FAILED"
    lines = cluster.log(job).splitlines()
    failed = next(k for k, line in enumerate(lines) if "failed; the logs of all tasks" in line)
    # Slurm's own message is repeated after what the surviving task printed.
    assert any("srun: error: n2: task 1: Killed" in line for line in lines[failed:])
    assert cluster.job(job)["Restarts"] == "0"
    (kept,) = (run / "logs").iterdir()
    assert kept.name == f"{job}-0"
    assert {file.name for file in kept.iterdir()} == {"rank-0.log", "rank-1.log", "srun.log"}


def test_a_job_that_fails_after_progress_gets_one_more_try(cluster, site):
    site.write_recipe("pretrain_c4", "retried-recipes", max_steps=MANY)
    settings = site.settings("retried", RECIPES=str(site.folder / "retried-recipes"))
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings, "--train.checkpoint_every", "2")
    wait_until_training(cluster, job, run)
    wait_for_file(run / "checkpoints" / "latest")
    end_rank_one(cluster, "KILL")
    wait_for_restart(cluster, job, 0)
    assert "it had made progress, so it gets one more try; to be requeued" in cluster.log(job)
    finish_soon(site, run, "retried-recipes")
    assert cluster.wait(job) == "COMPLETED", cluster.log(job)
    assert not (run / "idle_starts").exists()


def test_a_task_that_hangs_is_named(scenarios):
    scenarios["hang"].result()


def test_starts_without_progress_are_limited(cluster, site):
    settings = site.settings("bounded", MAX_IDLE_STARTS="1")
    job = submit(cluster, "pretrain.sh", settings)
    cluster.wait(job, "RUNNING")
    time.sleep(1)  # it is in its checks
    cluster.run("scancel", "--batch", "--signal=USR2", job)
    assert cluster.wait(job) == "FAILED"
    assert "1 starts in a row made no progress (MAX_IDLE_STARTS=1)" in cluster.log(job)


def test_a_job_signalled_before_its_first_step_is_requeued(cluster, site):
    settings = site.settings("early")
    job = submit(cluster, "pretrain.sh", settings)
    cluster.wait(job, "RUNNING")
    time.sleep(1)  # it is in its checks
    cluster.run("scancel", "--batch", "--signal=USR2", job)
    assert cluster.wait(job) == "COMPLETED", cluster.log(job)
    assert cluster.job(job)["Restarts"] == "1"


def test_a_job_with_gpus_that_torch_does_not_see_is_refused(cluster, site):
    settings = site.settings("unseen", CPU="0", NODE_CHECK="0")
    job = submit(cluster, "pretrain.sh", settings, tasks=4, flags=("--gpus-per-node=4",))
    assert cluster.wait(job) == "FAILED"
    assert "this job has 4 GPUs on n1, but torch sees none" in cluster.log(job)


def test_a_job_without_its_inputs_fails_with_one_line(cluster, site):
    settings = site.settings("hopeless", SHARDS=str(site.folder / "nowhere"))
    job = submit(cluster, "pretrain.sh", settings)
    assert cluster.wait(job, timeout=60) == "FAILED"
    assert cluster.job(job)["ExitCode"] == "2:0"
    first, line = cluster.log(job).splitlines()
    assert "start 0, code at commit " in first
    assert line.startswith("error: ")
    assert "nowhere/c4-train" in line


def test_fine_tuning_requires_the_marker_of_pretraining(cluster, site):
    job = submit(cluster, "finetune.sh", site.settings("unfinished"), "docs", nodes=1)
    assert cluster.wait(job) == "FAILED"
    assert cluster.job(job)["ExitCode"] == "2:0"
    assert "pretrain is not finished" in cluster.log(job)


def test_the_repository_is_the_submission_folder_unless_set(cluster, site, tmp_path):
    settings = site.settings("elsewhere")
    del settings["LOCOST_ROOT"]
    script = str(ROOT / "slurm" / "finetune.sh")
    flags = ("--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={tmp_path}/%j.log")
    lost = cluster.submit(*flags, script, cwd=tmp_path, **settings)
    assert cluster.wait(lost) == "FAILED"
    assert f"error: no repository in {tmp_path}; submit from it" in cluster.log(lost)
    found = cluster.submit(*flags, script, cwd=ROOT, **settings)
    named = cluster.submit(*flags, script, cwd=tmp_path, LOCOST_ROOT=str(ROOT),
                           LOCOST_COMMIT="1234567", **settings)  # fmt: skip
    for job in (found, named):
        assert cluster.wait(job) == "FAILED"
        assert "pretrain is not finished" in cluster.log(job)
    assert "note: the code was at 1234567 when this job was submitted" in cluster.log(named)


def test_a_link_behind_one_that_failed_without_progress_refuses(cluster, site, tmp_path):
    stub = tmp_path / "python"  # a stub of the programs: passes the check, then fails
    stub.write_text("#!/bin/bash\n[[ ${!#} == --dry_run ]] || { echo call >> $CALLS; exit 3; }\n")
    stub.chmod(0o755)
    settings = site.settings(
        "given-up", PYTHON=str(stub), NODE_CHECK="0", REQUEUE="0", CALLS=str(tmp_path / "calls")
    )
    said = []
    for submission in ("1", "1", "2"):  # two links of one chain.sh, one of the next
        job = submit(cluster, "pretrain.sh", settings | {"LOCOST_SUBMISSION": submission}, nodes=1)
        assert cluster.wait(job) == "FAILED"
        said.append("failed without progress; see its log" in cluster.log(job))
    assert said == [False, True, False]
    assert (tmp_path / "calls").read_text() == "call\n" * 2


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + SLOWLY
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.1)


def processes_of(run: Path) -> list[str]:
    """Command lines that name the run."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [line.decode().replace("\0", " ") for line in lines if str(run).encode() in line]


# A stub of the programs, since no GPU is here: it tells what each of its processes would see.
TELLS = """#!/bin/bash
[[ ${!#} != --dry_run ]] || exit 0
[[ ! $* =~ node_check ]] || exec PYTHON "$@"
echo "$CUDA_VISIBLE_DEVICES $SLURM_LOCALID $OMP_NUM_THREADS" > "$SEEN/$SLURM_PROCID"
"""


@pytest.mark.parametrize(
    "flags, seen",
    [
        (("--gpus-per-node=4",), ["0,1,2,3 0 4", "0,1,2,3 1 4", "0,1,2,3 2 4", "0,1,2,3 3 4"]),
        (("--gres=gpu:2",), ["0,1 0 8", "0,1 1 8"]),
        (("--gpus-per-node=4", "--gres=gpu:2"), ["0,1 0 8", "0,1 1 8"]),
        (("--gpus-per-task=1", "--ntasks-per-node=2"), ["0,1 0 4", "0,1 1 4"]),
        ((), [" 0 4", " 1 4", " 2 4", " 3 4"]),
    ],
)
def test_gpus_however_asked_for_get_a_process_each_that_sees_all(
    cluster, site, tmp_path, flags, seen
):
    stub = tmp_path / "python"
    stub.write_text(TELLS.replace("PYTHON", sys.executable))
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/bash\nfor gpu in 1 2 3 4; do echo 'H100, 550.54'; done\n")
    for program in (stub, tool):
        program.chmod(0o755)
    (tmp_path / "seen").mkdir()
    path = f"{tmp_path}:{os.environ['PATH']}"
    settings = site.settings(
        "layout", CPU="0", PYTHON=str(stub), PATH=path, REQUEUE="0", OMP_NUM_THREADS=""
    )
    settings["RUNS"] = str(tmp_path / "runs")
    job = submit(cluster, "pretrain.sh", settings | {"SEEN": str(tmp_path / "seen")}, nodes=1,
                 tasks=4, flags=("--cpus-per-task=4", *flags))  # fmt: skip
    assert cluster.wait(job) == "COMPLETED", cluster.log(job)
    found = [path.read_text().rstrip("\n") for path in sorted((tmp_path / "seen").iterdir())]
    assert found == seen


def test_sigterm_to_the_batch_script_saves_and_leaves_nothing_running(cluster, site, long_settings):
    settings = site.settings("terminated", **long_settings)
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings)
    wait_until_training(cluster, job, run)
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    assert cluster.wait(job) == "FAILED"
    assert cluster.job(job)["ExitCode"] == "85:0"
    assert "stopped by SIGTERM, all results are saved" in cluster.log(job)
    assert (run / "last" / "COMPLETE").is_file()
    assert not processes_of(run)


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(300, marks=pytest.mark.soak)], ids=["seconds", "minutes"]
)
def test_a_controller_that_is_away_when_a_job_stops_is_waited_for(
    cluster, site, long_settings, seconds
):
    settings = site.settings(f"away-{seconds}", **long_settings)
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings, flags=("--time=30",))
    wait_until_training(cluster, job, run)
    cluster.stop_controller()
    cluster.inside("pkill -USR2 -f slurm_script")
    wait_for_file(run / "last")  # it is saved, and asks the controller in vain
    time.sleep(seconds)
    cluster.start_controller()
    wait_for_restart(cluster, job, 0)
    assert "all results are saved; to be requeued" in cluster.log(job)
    cluster.run("scancel", job)


def test_a_stopped_preprocessing_is_requeued_and_ends_in_the_same_bytes(cluster, site, tmp_path):
    lengths = (
        "pretrain",
        *(word for name, length in SIZES.items() for word in (f"--{name}", str(length))),
    )
    settings = site.settings("requeued-shards", SHARDS=str(tmp_path / "shards"))
    job = submit(cluster, "preprocess.sh", settings, *lengths, nodes=1, tasks=2,
                 flags=("--ntasks=2",))  # fmt: skip
    cluster.wait(job, "RUNNING")
    while not (tmp_path / "shards").exists():
        time.sleep(0.1)
    cluster.run("scancel", "--batch", "--signal=USR2", job)
    assert cluster.wait(job) == "COMPLETED", cluster.log(job)
    assert cluster.job(job)["Restarts"] == "1"
    for split in ("c4-train", "c4-validation"):
        made, expected = tmp_path / "shards" / split, site.folder / "shards" / split
        for path in expected.glob("*.tar"):
            assert (made / path.name).read_bytes() == path.read_bytes()


def test_a_node_with_a_missing_gpu_is_named(cluster, site, tmp_path):
    # A fake nvidia-smi: the nodes' GPUs are other device files.
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/bash\n"
        "for gpu in 1 2 3; do echo 'H100, 550.54'; done\n"
        "[[ $(hostname) == n3 ]] || echo 'H100, 550.54'\n"
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    path = f"{tmp_path}:{os.environ['PATH']}"
    settings = site.settings("gpus", CPU="0", DS_ACCELERATOR="cpu", PATH=path)
    job = submit(cluster, "pretrain.sh", settings, "--train.batch_size", "16", nodes=4,
                 flags=("--gpus-per-node=4",))  # fmt: skip
    assert cluster.wait(job, timeout=60) == "FAILED"
    assert "error: node n3: 3 of 4 GPUs answer nvidia-smi" in cluster.log(job)
    assert "sbatch --exclude=n3" in cluster.log(job)


@pytest.mark.slow
def test_whole_books_are_shared_by_the_gpus_of_a_node(site, tmp_path):
    """The recipe says eight; the settings, as many as a node has. The text is BookSum-Book's."""

    def bash(script: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        own = {
            "CPU": "1",
            "PYTHON": sys.executable,
            "RUNS": str(tmp_path),
            "MPIRUN": "true",
            **more,
        }
        return subprocess.run(
            ["bash", f"{ROOT}/slurm/{script}", "booksum_book_whole", *arguments],
            cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True,
        )  # fmt: skip

    four = bash("finetune.sh", "--check_arguments", GPUS_PER_NODE="4")
    assert four.returncode == 0 and "ready: " in four.stdout, four.stderr
    eight = {"GPUS_PER_NODE": "4", "BOOKSUM_BOOK_WHOLE_FINETUNE_ARGUMENTS": " "}
    refused = bash("finetune.sh", "--check_arguments", **eight)
    assert "sequence_parallel_size 8 does not divide the 4 processes" in refused.stderr
    missing = bash("preprocess.sh", "--dry_run", SETS_DIR=str(tmp_path),
                   TOKENIZER=str(site.folder / "tokenizer.model"))  # fmt: skip
    assert missing.returncode == 2, missing.stdout
    assert f"{tmp_path}/booksum_book/train*" in missing.stderr


@pytest.mark.slow
def test_outside_slurm_a_script_only_checks(site, tmp_path):
    def bash(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **site.settings("checked", **more)}
        return subprocess.run(
            ["bash", f"{ROOT}/slurm/{command[0]}", *command[1:]],
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        )  # fmt: skip

    for script in ("preprocess.sh", "pretrain.sh", "evaluate.sh"):
        refused = bash(script)
        assert refused.returncode == 2
        assert "submit it with sbatch" in refused.stderr
    ready = bash("pretrain.sh", "--dry_run")
    assert ready.returncode == 0, ready.stderr
    assert "ready: " in ready.stdout
    ready = bash("preprocess.sh", "docs", "--dry_run")
    assert ready.returncode == 0, ready.stderr
    assert ready.stdout.count("ready: ") == 3
    missing = bash("preprocess.sh", "--dry_run", C4_TRAIN="nowhere-*", SHARDS=str(tmp_path))
    assert missing.returncode == 2
    assert "nowhere-*" in missing.stderr
    assert bash("finetune.sh", "../docs", "--dry_run").returncode == 2
    waits = bash("finetune.sh", "docs", "--dry_run")
    assert waits.returncode == 2 and "pretrain is not finished" in waits.stderr
    for script in ("finetune.sh", "evaluate.sh"):  # what can be checked before the pre-training
        ready = bash(script, "docs", "--check_arguments")
        assert ready.returncode == 0 and "ready: " in ready.stdout, ready.stderr
    wrong = bash("evaluate.sh", "docs", "--check_arguments", EVALUATE_ARGUMENTS="--num_beams 0")
    assert wrong.returncode == 2 and "num_beams=0 is impossible" in wrong.stderr
    many = bash("finetune.sh", "docs", "--check_arguments", FINETUNE_NODES="16")
    assert many.returncode == 2 and "batch_size 8 cannot fill 16 processes" in many.stderr
    lost = bash("preprocess.sh", "--dry_run", MPIRUN="nowhere/mpirun")
    assert lost.returncode == 2 and "MPIRUN: no program nowhere/mpirun" in lost.stderr
    lost = bash("pretrain.sh", "--dry_run", PYTHON="nowhere")
    assert lost.returncode == 2 and "PYTHON: no program nowhere" in lost.stderr
    own = tmp_path / "settings.sh"  # modules and conda read variables that may be unset
    own.write_text(f": $NOT_SET\nsource {ROOT}/slurm/settings.sh\n")
    assert bash("pretrain.sh", "--dry_run", LOCOST_SETTINGS=str(own)).returncode == 0
    assert list(Path(site.settings("checked")["RUNS"]).iterdir()) == []
