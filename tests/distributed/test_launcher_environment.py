"""Ranks, hosts and ports from the launchers' variables; Slurm's own tool expands host lists too."""

import shutil
import subprocess

import pytest

from pipeline.distributed.launcher_environment import (
    check_no_gpus,
    expand_hosts,
    meeting_point,
    place_from_environment,
    port_of,
)

# As Slurm 22.05 sets them for the second of two tasks on two nodes.
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[3-4]",
}  # fmt: skip
# Of `sbatch --nodes=2 --ntasks-per-node=2`, before any srun.
BATCH_SHELL = {
    "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4", "SLURM_JOB_NODELIST": "n[1-2]",
}  # fmt: skip
# Shells that Slurm itself starts as a step: salloc's where the site sets use_interactive_step.
SHELL = {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}
LISTS = {
    "n[1-4]": "n1 n2 n3 n4",
    "a[003-005,7],b2": "a003 a004 a005 a7 b2",
    "rack[1-2]n[3-4]": "rack1n3 rack1n4 rack2n3 rack2n4",
    "n1": "n1",
    "b2,a[1-2]": "b2 a1 a2",
    "n[09-11]": "n09 n10 n11",
    "gpu-a[8-9],login.x": "gpu-a8 gpu-a9 login.x",
}


def test_each_launcher_is_understood():
    deepspeed = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    mpirun = {f"OMPI_COMM_WORLD_{name}": value for name, value in deepspeed.items()}
    mpirun["OMPI_COMM_WORLD_SIZE"] = "4"
    assert place_from_environment({}) == (0, 1, 0)
    assert place_from_environment(deepspeed) == (3, 4, 1)
    assert place_from_environment(mpirun) == (3, 4, 1)
    assert place_from_environment(STEP) == (1, 2, 0)
    assert place_from_environment({**STEP, **deepspeed}) == (3, 4, 1)  # started within a step
    with pytest.raises(ValueError, match="RANK=4 and WORLD_SIZE=4 contradict"):
        place_from_environment({**deepspeed, "RANK": "4"})


def test_without_srun_a_program_is_one_process():
    assert place_from_environment(BATCH_SHELL) == (0, 1, 0)
    assert place_from_environment(SHELL) == (0, 1, 0)


def test_rank_0_is_at_the_given_address_or_on_the_first_host_of_the_step():
    assert meeting_point({"MASTER_ADDR": "x", "MASTER_PORT": "5"}) == ("x", 5)
    assert meeting_point(STEP) == ("n3", 10_142)
    assert meeting_point({**STEP, "SLURM_RESTART_COUNT": "1"}) == ("n3", 10_143)
    assert meeting_point({**STEP, "MASTER_PORT": "5"}) == ("n3", 5)
    with pytest.raises(ValueError, match="MASTER_ADDR and MASTER_PORT not set"):
        meeting_point(BATCH_SHELL)
    with pytest.raises(ValueError, match="MASTER_PORT is '70000', expected a port from 1 to 65535"):
        meeting_point({"MASTER_ADDR": "x", "MASTER_PORT": "70000"})


def test_ports_of_jobs_and_steps_that_run_together_differ():
    jobs = range(4_999_500, 5_000_500)
    ports = {port_of(job, step, job % 7) for job in jobs for step in range(20)}
    assert len(ports) == 20_000 and min(ports) == 10_000 and max(ports) == 29_999
    assert len({port_of(1, 0, restarts) for restarts in range(20)}) == 20


@pytest.mark.parametrize("nodelist", LISTS)
def test_host_lists_are_expanded(nodelist):
    assert expand_hosts(nodelist) == LISTS[nodelist].split()


@pytest.mark.skipif(not shutil.which("scontrol"), reason="Slurm is not installed")
@pytest.mark.parametrize("nodelist", [*LISTS, "a[1-2,5,09-10]b[0-1]"])
def test_slurm_expands_host_lists_equally(nodelist, tmp_path):
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\n")
    result = subprocess.run(
        ["scontrol", "show", "hostnames", nodelist],
        env={"SLURM_CONF": str(tmp_path / "slurm.conf"), "PATH": "/usr/bin:/bin:/usr/local/bin"},
        capture_output=True,
        text=True,
    )
    assert expand_hosts(nodelist) == result.stdout.split(), result.stderr


def test_an_empty_host_list_is_refused():
    with pytest.raises(ValueError, match="'' is not a Slurm host list"):
        expand_hosts("")


def test_gpus_that_torch_does_not_see_are_an_error():
    check_no_gpus({})
    check_no_gpus({"SLURM_GPUS_ON_NODE": "0"})
    check_no_gpus({"SLURM_GPUS_ON_NODE": "4", "DS_ACCELERATOR": "cpu"})
    with pytest.raises(ValueError, match=r"this job has 4 GPUs on .* torch sees none"):
        check_no_gpus({"SLURM_GPUS_ON_NODE": "4"})
