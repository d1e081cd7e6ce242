"""Trainings that are stopped in every way Slurm has: each goes on, nothing lost or repeated."""

import time
from collections.abc import Callable
from pathlib import Path

from cluster import Cluster
from small_site import Site, losses, submit, wait_until_training, weights

MANY = 1_000_000  # steps: more than any of these trainings takes
MORE = 30  # steps of the last part of each


def run_out_of_time(cluster: Cluster, job: str) -> None:
    """Move the job's limit so near that Slurm sends the signal of --signal."""
    cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now+60")


def finish_soon(site: Site, run: Path, recipes: str) -> int:
    """Let the next start of the run end a little later than it has come; the steps at its end."""
    steps = int((run / "checkpoints" / "latest").read_text().removeprefix("step-")) + MORE
    site.write_recipe("pretrain_c4", recipes, max_steps=steps)
    return steps


def assert_unbroken(cluster: Cluster, site: Site, run: Path, steps: int) -> None:
    """The run has every step once, and losses and weights of one that nobody stopped."""
    site.write_recipe("pretrain_c4", "unbroken-recipes", max_steps=steps)
    settings = site.settings(
        f"{run.parent.name}-unbroken", RECIPES=str(site.folder / "unbroken-recipes")
    )
    job = submit(cluster, "pretrain.sh", settings)
    assert cluster.wait(job) == "COMPLETED", cluster.log(job)
    unbroken = Path(settings["RUNS"]) / "pretrain"
    assert [step for step, _ in losses(run)] == list(range(1, steps + 1))
    assert losses(run) == losses(unbroken)
    assert weights(run) == weights(unbroken)


def test_three_links_by_time_limit_equal_one(cluster, site):
    """No requeue, by the setting or by the site: a link ends well, and the next one goes on."""
    recipes = str(site.folder / "links-recipes")
    site.write_recipe("pretrain_c4", "links-recipes", max_steps=MANY)
    settings = site.settings("links", RECIPES=recipes, REQUEUE="0")
    run = Path(settings["RUNS"]) / "pretrain"
    links = [submit(cluster, "pretrain.sh", settings)]
    for requeue, flag in (("1", "--no-requeue"), ("0", "--hold"), ("0", "--requeue")):
        after = (f"--dependency=afterok:{links[-1]}", "--kill-on-invalid-dep=yes", flag)
        again = settings | {"REQUEUE": requeue}
        links.append(submit(cluster, "pretrain.sh", again, flags=after))
    for link in links[:2]:
        wait_until_training(cluster, link, run)
        run_out_of_time(cluster, link)
        assert cluster.wait(link) == "COMPLETED"
        assert "the next link goes on" in cluster.log(link)
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
    """Wait until the job has gone back into the queue once more than so often."""
    deadline = time.monotonic() + 90
    while int(cluster.job(job)["Restarts"]) == restarts:
        assert time.monotonic() < deadline, f"{cluster.job(job)}\n{cluster.log(job)}"
        time.sleep(0.2)


def first_node(cluster: Cluster, job: str) -> str:
    """The node that runs the job's script."""
    return cluster.job(job)["BatchHost"]


def set_down(cluster: Cluster, job: str) -> None:
    """A node of the job is taken out of service by hand, and put back when the job has left it."""
    node = first_node(cluster, job)
    restarts = int(cluster.job(job)["Restarts"])
    cluster.set_node(node, "down")
    wait_for_restart(cluster, job, restarts)
    cluster.set_node(node, "resume")


def kill_daemon(cluster: Cluster, job: str) -> None:
    """Slurm gives up a node whose daemon died; the job's processes there live on for a while."""
    node = first_node(cluster, job)
    restarts = int(cluster.job(job)["Restarts"])
    cluster.kill_slurmd(node)
    wait_for_restart(cluster, job, restarts)
    cluster.start_slurmd(node)


def run_out_of_time_once(cluster: Cluster, job: str) -> None:
    """The limit, which Slurm keeps when it starts the job again, is put back."""
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


def test_a_training_survives_whatever_slurm_does_to_it(cluster, site):
    """One job, put back into the queue each time, by itself or by Slurm."""
    site.write_recipe("pretrain_c4", "one-recipes", max_steps=MANY)
    settings = site.settings("one", RECIPES=str(site.folder / "one-recipes"))
    run = Path(settings["RUNS"]) / "pretrain"
    job = submit(cluster, "pretrain.sh", settings)
    wait_until_training(cluster, job, run)

    second = submit(cluster, "pretrain.sh", settings)
    assert cluster.wait(second) == "FAILED"
    assert f"job {job} is training there" in cluster.log(second)

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
