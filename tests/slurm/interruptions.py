"""Trainings that Slurm stops in every way it has, compared with one that nobody stopped.

While a training waits for one of Slurm's timers it is paused: the steps would cost time twice, here
and in the run that nobody stopped.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import Cluster
from small_site import SLOWLY, Site, losses, submit, wait_until_training, weights

MANY = 1_000_000  # steps: more than any of these trainings takes
MORE = 30  # steps of the last part of each
PROGRAM = "^[^ ]*python.* -u pipeline/train.py"  # a training process's command line


@contextmanager
def paused(cluster: Cluster) -> Iterator[None]:
    """Keep the cluster's training processes from running; what is sent to them waits for them."""
    cluster.inside(f"pkill -STOP -f '{PROGRAM}'")
    try:
        yield
    finally:  # of those that Slurm has ended meanwhile none is left
        cluster.inside(f"pkill -CONT -f '{PROGRAM}' || true")


def end_rank_one(cluster: Cluster, signal: str) -> None:
    """Send a signal to the training process that is task 1 of its step."""
    cluster.inside(
        f"""
        for pid in $(pgrep -f '{PROGRAM}'); do
            if tr '\\0' '\\n' < /proc/$pid/environ | grep -qx SLURM_PROCID=1; then
                kill -{signal} $pid && found=1
            fi
        done
        test -n "$found"
        """
    )


def name_a_hanging_task(cluster: Cluster, site: Site) -> None:
    """It takes the hang timeout, and the minute that srun gives to the other task."""
    site.write_recipe("pretrain_c4", "hang-recipes", max_steps=MANY)
    settings = site.settings("hangs", RECIPES=str(site.folder / "hang-recipes"))
    job = submit(cluster, "pretrain.sh", settings, "--train.hang_timeout", "20")
    wait_until_training(cluster, job, Path(settings["RUNS"]) / "pretrain")
    end_rank_one(cluster, "STOP")
    assert cluster.wait(job) == "FAILED"
    assert "rank 0 on n1 has not moved for 20 s" in cluster.log(job)
    assert cluster.job(job)["Restarts"] == "0"


def run_out_of_time(cluster: Cluster, job: str) -> None:
    """Move the job's limit so near that Slurm sends the signal of --signal, within 30 s."""
    signalled = cluster.log(job).count("received the signal to stop")
    deadline = time.monotonic() + SLOWLY
    with paused(cluster):  # before the limit moves: the signal may come at once
        cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now+60")
        while cluster.log(job).count("received the signal to stop") == signalled:
            assert time.monotonic() < deadline, f"{cluster.job(job)}\n{cluster.log(job)}"
            time.sleep(0.5)


def finish_soon(site: Site, run: Path, recipes: str) -> int:
    """Let the next start of the run finish after a few steps; returns its total steps."""
    steps = int((run / "checkpoints" / "latest").read_text().removeprefix("step-")) + MORE
    site.write_recipe("pretrain_c4", recipes, max_steps=steps)
    return steps


def assert_unbroken(cluster: Cluster, site: Site, run: Path, steps: int) -> None:
    """The run has every step once, and the losses and weights of one that nobody stopped."""
    name = f"{run.parent.name}-unbroken"
    recipes = site.write_recipe("pretrain_c4", f"{name}-recipes", max_steps=steps).parent
    settings = site.settings(name, RECIPES=str(recipes))
    job = submit(cluster, "pretrain.sh", settings)
    assert cluster.wait(job) == "COMPLETED", cluster.log(job)
    unbroken = Path(settings["RUNS"]) / "pretrain"
    assert [step for step, _ in losses(run)] == list(range(1, steps + 1))
    assert losses(run) == losses(unbroken)
    assert weights(run) == weights(unbroken)


def survive_time_limits(cluster: Cluster, site: Site) -> None:
    """Without requeue, by the setting or by the site: a link succeeds, and the next resumes."""
    recipes = str(site.folder / "links-recipes")
    site.write_recipe("pretrain_c4", "links-recipes", max_steps=MANY)
    settings = site.settings("links", RECIPES=recipes, REQUEUE="0")
    run = Path(settings["RUNS"]) / "pretrain"
    links = [submit(cluster, "pretrain.sh", settings)]
    for requeue, flag in (("1", "--no-requeue"), ("0", "--hold"), ("0", "--requeue")):
        after = (f"--dependency=afterany:{links[-1]}", flag)
        again = settings | {"REQUEUE": requeue}
        links.append(submit(cluster, "pretrain.sh", again, flags=after))
    for link in links[:2]:
        wait_until_training(cluster, link, run)
        run_out_of_time(cluster, link)
        assert cluster.wait(link) == "COMPLETED"
        assert "the next link resumes it" in cluster.log(link)
        assert not (run / "FINISHED").exists()
    steps = finish_soon(site, run, "links-recipes")
    cluster.run("scontrol", "release", links[2])
    assert cluster.wait(links[2]) == "COMPLETED"
    assert (run / "FINISHED").exists()
    assert cluster.wait(links[3]) == "COMPLETED"
    assert "is finished" in cluster.log(links[3])
    assert_unbroken(cluster, site, run, steps)


def urgent_work(cluster: Cluster, job: str) -> None:
    """A partition of higher priority takes all nodes for a moment."""
    urgent = cluster.submit(
        "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"
    )
    assert cluster.wait(urgent) == "COMPLETED"


def wait_for_restart(cluster: Cluster, job: str, restarts: int) -> None:
    """Wait until the job, once restarted `restarts` times, is back in the queue again."""
    deadline = time.monotonic() + SLOWLY
    while int(cluster.job(job)["Restarts"]) == restarts:
        assert time.monotonic() < deadline, f"{cluster.job(job)}\n{cluster.log(job)}"
        time.sleep(0.2)


def first_node(cluster: Cluster, job: str) -> str:
    """The node that runs the job's script."""
    return cluster.job(job)["BatchHost"]


def set_down(cluster: Cluster, job: str) -> None:
    """An administrator takes a node of the job out of service, and later puts it back."""
    node = first_node(cluster, job)
    restarts = int(cluster.job(job)["Restarts"])
    cluster.set_node(node, "down")
    wait_for_restart(cluster, job, restarts)
    cluster.set_node(node, "resume")


def kill_daemon(cluster: Cluster, job: str) -> None:
    """Slurm gives up a node whose daemon died, after 15 s; the job's processes there survive."""
    node = first_node(cluster, job)
    restarts = int(cluster.job(job)["Restarts"])
    cluster.kill_slurmd(node)
    with paused(cluster):
        wait_for_restart(cluster, job, restarts)
    cluster.start_slurmd(node)


def run_out_of_time_once(cluster: Cluster, job: str) -> None:
    """Slurm keeps the changed limit at the restart, so it is put back."""
    restarts = int(cluster.job(job)["Restarts"])
    run_out_of_time(cluster, job)
    wait_for_restart(cluster, job, restarts)
    cluster.run("scontrol", "update", f"jobid={job}", "TimeLimit=10")


EVENTS: dict[str, Callable[[Cluster, str], object]] = {
    "time limit": run_out_of_time_once,
    "preemption": urgent_work,
    "scontrol requeue": lambda cluster, job: cluster.run("scontrol", "requeue", job),
    "node down": set_down,
    "slurmd killed": kill_daemon,
}


def survive_every_interruption(cluster: Cluster, site: Site) -> None:
    """One job, requeued each time, by itself or by Slurm."""
    site.write_recipe("pretrain_c4", "one-recipes", max_steps=MANY)
    settings = site.settings("one", RECIPES=str(site.folder / "one-recipes"))
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings)
    wait_until_training(cluster, job, run)

    second = submit(cluster, "pretrain.sh", settings)
    assert cluster.wait(second) == "FAILED"
    assert f"job {job} is at work there" in cluster.log(second)

    for restarts, event in enumerate(EVENTS.values()):
        event(cluster, job)
        wait_for_restart(cluster, job, restarts)
        wait_until_training(cluster, job, run)
    cluster.run("scontrol", "requeuehold", job)
    cluster.wait(job, "PENDING")
    steps = finish_soon(site, run, "one-recipes")
    cluster.run("scontrol", "release", job)
    assert cluster.wait(job) == "COMPLETED"
    assert_unbroken(cluster, site, run, steps)
