"""The Slurm of these tests, and the behaviour of Slurm that the scripts rely on."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import GPUS, NODES, Cluster, Unavailable

HERE = Path(__file__).resolve().parent

# Opens a cluster, submits a job that leaves a detached process behind, and waits to be killed.
OWNER = """
import sys, time
from pathlib import Path
from cluster import Cluster
with Cluster(Path(sys.argv[1]) / "cluster") as cluster:
    print(cluster.inside("readlink /proc/self/ns/pid"), flush=True)
    hosts = cluster.run("srun", "--nodes=4", "hostname").stdout.split()
    detach = "trap '' TERM; setsid sleep 1000 & touch started; sleep 1000"
    job = cluster.submit("--wrap", detach, cwd=sys.argv[1])
    while not Path(sys.argv[1], "started").exists():
        time.sleep(0.1)
    print(*sorted(hosts), flush=True)
    if sys.argv[2:] != ["stop"]:
        time.sleep(1000)
"""

WARNED = """#!/bin/bash
trap 'echo shell has it; touch signalled' USR2
rm -f signalled
srun bash -c 'trap "echo task has it" USR2
              until [ -e signalled ]; do sleep 0.5; done; sleep 1; echo task continues' &
wait $!
echo status $?
wait
"""

HIT = "srun sh -c 'touch $(hostname)-works; exec sleep 1234$SLURM_RESTART_COUNT'"


def processes(namespace: str) -> list[int]:
    """Ids of the processes whose /proc/PID/ns/pid is `namespace`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            if str(entry.readlink()) == namespace:
                found.append(int(entry.parts[2]))
        except OSError:  # another user's, or ended
            continue
    return found


def until(condition: Callable[[], object]) -> None:
    """Wait until it holds, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.1)


def script(folder: Path, text: str) -> str:
    """A batch script's path."""
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n{text}\n")
    return str(path)


@pytest.fixture(scope="module")
def damaged(slurm, tmp_path_factory) -> Iterator[tuple[Cluster, str, str]]:
    """A cluster whose n1 has lost its slurmd, a job that runs on n1 and n2, and one on n4 whose
    signal comes 10 to 40 s after its start.

    Slurm checks time limits every 30 s, sends the signal up to 30 s early, and once: one that is
    due at the start is lost where the check comes before the batch shell. It notices a lost
    slurmd after 15 s. The other tests run meanwhile.
    """
    folder = tmp_path_factory.mktemp("site")
    with Cluster(folder / "cluster") as cluster:
        script = folder / "job.sh"
        script.write_text(WARNED)
        signal_at = ("--time=1", "--signal=B:USR2@20")
        warned = cluster.submit("--nodelist=n4", *signal_at, str(script), cwd=folder)
        hit = cluster.submit("--nodelist=n[1-2]", "--wrap", HIT, cwd=folder)
        until(lambda: len(list(folder.glob("n?-works"))) == 2)
        cluster.kill_slurmd("n1")
        yield cluster, hit, warned


@pytest.fixture
def idle(cluster, damaged) -> Cluster:
    """The cluster, with nothing left of earlier tests."""
    cluster.run("scancel", "--user", str(os.getuid()))
    until(lambda: not cluster.run("squeue", "--noheader").stdout)
    # A controller that was restarted does not know its nodes until they have answered.
    until(lambda: set(cluster.node_states().values()) == {"idle"})
    return cluster


def test_four_idle_nodes_with_four_gpus_each(idle):
    lines = idle.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T %G")
    assert lines.stdout.splitlines() == [f"{name} idle gpu:{GPUS}" for name in NODES]


def test_a_task_on_each_node_sees_its_name_its_gpus_and_the_others(idle):
    look = "echo $(hostname) $CUDA_VISIBLE_DEVICES $(getent hosts n1 n4)"
    result = idle.run("srun", "--nodes=4", "--gpus-per-node=4", "sh", "-c", look)
    assert sorted(result.stdout.splitlines()) == [
        f"{name} 0,1,2,3 127.0.0.1 n1 127.0.0.1 n4" for name in NODES
    ]


def test_two_side_by_side(idle, tmp_path):
    with Cluster(tmp_path / "other") as other:
        jobs = [(one, one.submit("--wrap", "sleep 1", cwd=tmp_path)) for one in (idle, other)]
        assert [one.wait(job) for one, job in jobs] == ["COMPLETED"] * 2
        (_, here), (_, there) = jobs
        assert other.run("scontrol", "show", "job", here, check=False).returncode
    assert idle.run("srun", "hostname").stdout.strip() in NODES
    with pytest.raises(RuntimeError, match="ended"):
        other.inside("true")
    assert here != there


@pytest.mark.parametrize("ending", ["stop", "TERM", "KILL"])
def test_nothing_survives_the_end_of_a_cluster(slurm, tmp_path, ending):
    command = [sys.executable, "-c", OWNER, str(tmp_path), ending]
    with (
        tempfile.TemporaryDirectory() as sockets,  # which a killed owner leaves behind
        subprocess.Popen(
            command, cwd=HERE, env=os.environ | {"TMPDIR": sockets}, stdout=subprocess.PIPE,
            text=True,
        ) as owner,
    ):  # fmt: skip
        try:
            assert owner.stdout
            namespace = owner.stdout.readline().strip()
            assert namespace.startswith("pid:[")
            if ending != "stop":
                assert owner.stdout.readline().split() == list(NODES)
                assert len(processes(namespace)) > 8  # daemons, and a job with a detached child
                owner.send_signal(getattr(signal, f"SIG{ending}"))
            owner.wait(timeout=60)
            if ending != "stop":  # which returns when all have ended
                until(lambda: not processes(namespace))
            assert processes(namespace) == []
        finally:
            owner.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="already an ordinary user")
def test_an_ordinary_user_has_one_too(slurm):
    nobody = pwd.getpwnam("nobody")
    become = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    if subprocess.run([*become, sys.executable, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"nobody may not run {sys.executable}")
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are root's alone
        shutil.copy(HERE / "cluster.py", name)
        os.chown(name, nobody.pw_uid, nobody.pw_gid)
        command = [*become, sys.executable, "-c", OWNER, name, "stop"]
        result = subprocess.run(command, cwd=name, capture_output=True, text=True)
        if "Unavailable" in result.stderr:
            pytest.skip(result.stderr.splitlines()[-1])
        assert result.stdout.split()[1:] == list(NODES), result.stderr
        owners = {path.stat().st_uid for path in Path(name, "cluster").rglob("*")}
        assert owners == {nobody.pw_uid}


def test_missing_programs_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("cluster.PROGRAMS", ["sbatch-of-nowhere"])
    with pytest.raises(Unavailable, match=r"not installed: sbatch-of-nowhere .*apt-get install"):
        Cluster(tmp_path).__enter__()


@pytest.mark.slow
@pytest.mark.parametrize("required", ["0", "1"])
def test_without_slurm_tests_are_skipped_and_in_ci_fail(required):
    environment = os.environ | {"PATH": "", "LOCOST_REQUIRE_SLURM": required}
    arguments = "-m pytest -p no:cacheprovider test_cluster.py -k four_idle".split()
    result = subprocess.run(
        [sys.executable, *arguments], cwd=HERE, env=environment, capture_output=True, text=True
    )
    assert "not installed: " in result.stdout
    assert (result.returncode, "1 skipped" in result.stdout) == (
        (1, False) if required == "1" else (0, True)
    )


def test_a_refused_submission_raises_with_the_text_of_sbatch(cluster):
    with pytest.raises(RuntimeError, match="Requested node configuration is not available"):
        cluster.submit("--gpus-per-node=5", "--wrap", "true")


def test_a_wait_that_times_out_shows_fields_and_log(idle, tmp_path):
    job = idle.submit("--wrap", "echo printed; sleep 100", cwd=tmp_path)
    idle.wait(job, "RUNNING")
    with pytest.raises(TimeoutError, match=r"is RUNNING(?s:.)*JobName=wrap(?s:.)*printed"):
        idle.wait(job, timeout=1)


def test_an_array_is_waited_for_as_one(idle, tmp_path):
    job = idle.submit("--array=0-2", "--wrap", "test $SLURM_ARRAY_TASK_ID != 1", cwd=tmp_path)
    assert idle.wait(job) == "FAILED"
    states = [task["JobState"] for task in idle.tasks(job)]
    assert sorted(states) == ["COMPLETED", "COMPLETED", "FAILED"]


def test_status_85_is_a_failure_and_a_child_is_cancelled_only_if_it_says_so(idle, tmp_path):
    parent = idle.submit("--wrap", "sleep 2; exit 85", cwd=tmp_path)
    after = f"--dependency=afterok:{parent}"
    child = idle.submit(after, "--kill-on-invalid-dep=yes", "--wrap", "true", cwd=tmp_path)
    stock = idle.submit(after, "--wrap", "true", cwd=tmp_path)
    assert idle.wait(parent) == "FAILED"
    assert idle.job(parent)["ExitCode"] == "85:0"
    assert idle.wait(child) == "CANCELLED"
    assert idle.job(stock)["JobState"] == "PENDING"
    assert idle.job(stock)["Reason"] == "DependencyNeverSatisfied"


def test_a_requeued_job_counts_its_restarts_and_appends(idle, tmp_path):
    text = """
echo restart ${SLURM_RESTART_COUNT-none}
[ -n "$SLURM_RESTART_COUNT" ] || { scontrol requeue $SLURM_JOB_ID; sleep 100; }
"""
    job = idle.submit("--open-mode=append", script(tmp_path, text), cwd=tmp_path)
    assert idle.wait(job) == "COMPLETED"
    lines = [line for line in idle.log(job).splitlines() if line.startswith("restart")]
    assert lines == ["restart none", "restart 1"]
    assert idle.job(job)["Restarts"] == "1"


def test_where_requeue_is_disabled_it_is_refused_and_the_job_continues(slurm, tmp_path):
    text = "scontrol requeue $SLURM_JOB_ID; echo status $?"
    # In a folder whose path is too long for a socket: 108 bytes.
    with Cluster(tmp_path / ("long" * 30) / "cluster", requeue=False) as site:
        job = site.submit("--wrap", text, cwd=tmp_path)
        assert site.wait(job) == "COMPLETED"
        assert site.log(job).splitlines() == [
            f"Requested operation is presently disabled for job {job}",
            "status 1",
        ]


def test_only_a_step_has_a_step_id(idle, tmp_path):
    names = "SLURM_STEP_ID SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS"
    text = f'show() {{ for name in {names}; do echo "$1 $name=${{!name-none}}"; done; }}\n'
    text += "export -f show\nshow batch\nsrun bash -c '[ $SLURM_PROCID != 3 ] || show task'"
    job = idle.submit("-N2", "--ntasks-per-node=2", script(tmp_path, text), cwd=tmp_path)
    assert idle.wait(job) == "COMPLETED"
    values = {"batch": ["none", "0", "0", "0", "4"], "task": ["0", "3", "1", "1", "4"]}
    assert idle.log(job).splitlines() == [
        f"{where} {name}={value}"
        for where, row in values.items()
        for name, value in zip(names.split(), row, strict=True)
    ]


def test_preemption_signals_first_and_a_job_that_ends_in_time_requeues_itself(idle, tmp_path):
    text = """
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
trap 'scontrol requeue $SLURM_JOB_ID' USR2
sleep 100 & wait
"""
    signal_ = ("--nodes=4", "--exclusive", "--signal=B:USR2@60", "--open-mode=append")
    job = idle.submit(*signal_, script(tmp_path, text), cwd=tmp_path)
    idle.wait(job, "RUNNING")
    urgent = idle.submit("--partition=urgent", "--nodes=4", "--wrap", "true", cwd=tmp_path)
    assert idle.wait(urgent) == "COMPLETED"
    assert idle.wait(job) == "COMPLETED"
    assert idle.job(job)["Restarts"] == "1"


def test_a_node_set_down_requeues_its_job_at_once_and_stays_down(idle, tmp_path):
    job = idle.submit("--nodelist=n3", "--wrap", "sleep 100", cwd=tmp_path)
    idle.wait(job, "RUNNING")
    idle.set_node("n3", "down", "broken fan")
    try:
        assert idle.wait(job, "PENDING", timeout=10) == "PENDING"
        assert "broken fan" in idle.run("sinfo", "--list-reasons").stdout
    finally:
        idle.set_node("n3", "resume")


def test_a_killed_slurmd_is_noticed_and_its_job_requeued_while_its_tasks_survive(damaged):
    cluster, hit, _ = damaged

    def first_run() -> int:  # its surviving tasks
        arguments = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"
        return cluster.inside(arguments).split().count("1234")

    cluster.wait(hit, "PENDING")
    assert "n1" in cluster.run("sinfo", "--list-reasons").stdout
    until(lambda: first_run() == 1)  # n2's has been ended; n1's cannot be
    cluster.start_slurmd("n1")
    cluster.wait(hit, "RUNNING")
    assert cluster.job(hit)["Restarts"] == "1"
    until(lambda: first_run() == 0)


def test_the_signal_before_the_time_limit_reaches_the_batch_shell_only(damaged):
    cluster, _, warned = damaged
    assert cluster.wait(warned) == "COMPLETED"
    assert cluster.log(warned).splitlines() == ["shell has it", "status 140", "task continues"]
