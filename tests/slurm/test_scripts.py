"""Each job script by itself: what it checks, where it may be submitted from, how it fails."""

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from small_site import ROOT, submit, wait_until_training

MANY = 1_000_000


@pytest.fixture(scope="module")
def long_settings(site) -> dict[str, str]:
    """Settings under which a pre-training does not end by itself."""
    site.write_recipe("pretrain_c4", "long-recipes", max_steps=MANY)
    return {"RECIPES": str(site.folder / "long-recipes")}


def end_rank_one(cluster, signal: str) -> None:
    """Send a signal to the training process that is task 1 of its step."""
    cluster.inside(
        f"""
        for pid in $(pgrep -f '^[^ ]*python.* -u pipeline/train.py'); do
            if tr '\\0' '\\n' < /proc/$pid/environ | grep -qx SLURM_PROCID=1; then
                kill -{signal} $pid && found=1
            fi
        done
        test -n "$found"
        """
    )


def test_a_task_that_dies_fails_the_job_by_name_and_is_not_tried_again(
    cluster, site, long_settings
):
    settings = site.settings("dies", **long_settings)
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings)
    wait_until_training(cluster, job, run)
    end_rank_one(cluster, "KILL")
    assert cluster.wait(job) == "FAILED"
    log = cluster.log(job)
    assert "srun: error: n2: task 1: Killed" in log
    assert cluster.job(job)["Restarts"] == "0"
    (kept,) = (run / "logs").iterdir()
    assert kept.name == f"{job}-0"
    assert {file.name for file in kept.iterdir()} == {"rank-0.log", "rank-1.log"}


def test_a_task_that_hangs_fails_the_job_by_name(cluster, site, long_settings):
    settings = site.settings("hangs", **long_settings)
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings, "--train.hang_timeout", "20")
    wait_until_training(cluster, job, run)
    end_rank_one(cluster, "STOP")
    assert cluster.wait(job) == "FAILED"
    assert "rank 0 on n1 has not moved for 20 s" in cluster.log(job)
    assert cluster.job(job)["Restarts"] == "0"


def test_a_job_does_not_go_back_into_the_queue_for_ever(cluster, site, long_settings):
    settings = site.settings("bounded", **long_settings, MAX_REQUEUES="0")
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings)
    wait_until_training(cluster, job, run)
    cluster.run("scancel", "--batch", "--signal=USR2", job)
    assert cluster.wait(job) == "FAILED"
    assert "MAX_REQUEUES=0" in cluster.log(job)
    assert (run / "last").exists()


def test_a_job_told_to_stop_before_its_first_step_goes_back_into_the_queue(cluster, site):
    settings = site.settings("early")
    job = submit(cluster, "pretrain.sh", settings)
    cluster.wait(job, "RUNNING")
    time.sleep(1)  # into the checks
    cluster.run("scancel", "--batch", "--signal=USR2", job)
    assert cluster.wait(job) == "COMPLETED", cluster.log(job)
    assert cluster.job(job)["Restarts"] == "1"


def test_a_job_with_gpus_that_torch_does_not_see_is_refused(cluster, site):
    settings = site.settings("unseen", CPU="0", NODE_CHECK="0")
    del settings["SBATCH_GPUS_PER_NODE"]
    job = submit(cluster, "pretrain.sh", settings, flags=("--gpus-per-node=4",))
    assert cluster.wait(job) == "FAILED"
    assert "this job has 4 GPUs on n1, but torch sees none" in cluster.log(job)


def test_a_hopeless_job_ends_with_one_line(cluster, site):
    settings = site.settings("hopeless", SHARDS=str(site.folder / "nowhere"))
    job = submit(cluster, "pretrain.sh", settings)
    assert cluster.wait(job, timeout=60) == "FAILED"
    assert cluster.job(job)["ExitCode"] == "2:0"
    (line,) = cluster.log(job).splitlines()
    assert line.startswith("error: ")
    assert "nowhere/c4-train" in line


def test_fine_tuning_waits_for_the_marker_of_pretraining(cluster, site):
    job = submit(cluster, "finetune.sh", site.settings("unfinished"), "docs", nodes=1)
    assert cluster.wait(job) == "FAILED"
    assert cluster.job(job)["ExitCode"] == "2:0"
    assert "pretrain is not finished" in cluster.log(job)


def test_the_repository_is_where_sbatch_ran_unless_told(cluster, site, tmp_path):
    settings = site.settings("elsewhere")
    del settings["LOCOST_ROOT"]
    script = str(ROOT / "slurm" / "finetune.sh")
    flags = ("--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={tmp_path}/%j.log")
    lost = cluster.submit(*flags, script, cwd=tmp_path, **settings)
    assert cluster.wait(lost) == "FAILED"
    assert f"error: no repository in {tmp_path}; submit from it" in cluster.log(lost)
    found = cluster.submit(*flags, script, cwd=ROOT, **settings)
    sourced = subprocess.run(
        ["bash", "-c", f'source {ROOT}/slurm/settings.sh && sbatch --parsable "$@"', "", *flags,
         script],
        cwd=tmp_path, env=cluster.environment | settings, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    for job in (found, sourced):
        assert cluster.wait(job) == "FAILED"
        assert "pretrain is not finished" in cluster.log(job)


def test_a_node_with_a_missing_gpu_is_named(cluster, site, tmp_path):
    # nvidia-smi is made up: the nodes' GPUs are device files of other kinds.
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/bash\n"
        "for gpu in 1 2 3; do echo 'H100, 550.54'; done\n"
        "[[ $(hostname) == n3 ]] || echo 'H100, 550.54'\n"
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    path = f"{tmp_path}:{os.environ['PATH']}"
    settings = site.settings("gpus", CPU="0", DS_ACCELERATOR="cpu", PATH=path)
    del settings["SBATCH_GPUS_PER_NODE"]
    job = submit(cluster, "pretrain.sh", settings, nodes=4, flags=("--gpus-per-node=4",))
    assert cluster.wait(job, timeout=60) == "FAILED"
    assert "error: node n3: 3 of 4 GPUs answer nvidia-smi" in cluster.log(job)
    assert "sbatch --exclude=n3" in cluster.log(job)


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
    assert list(Path(site.settings("checked")["RUNS"]).iterdir()) == []
