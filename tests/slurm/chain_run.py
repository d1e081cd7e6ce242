"""A whole chain of real jobs at a small size, from text to one report."""

import json
import subprocess
import time
from pathlib import Path

from cluster import Cluster
from small_site import ROOT, Site, losses

ONE_CORE = "--cpus-per-task=1 --time=10"


def chain(cluster: Cluster, settings: dict[str, str], *arguments: str) -> str:
    """The output of chain.sh, which must succeed."""
    finished = subprocess.run(
        ["bash", f"{ROOT}/slurm/chain.sh", *arguments],
        cwd=settings["SHARDS"], env=cluster.environment | settings, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def wait_for_empty_queue(cluster: Cluster, timeout: float = 300) -> None:
    deadline = time.monotonic() + timeout
    while queue := cluster.run("squeue", "--noheader", "--format=%i %j %T %r").stdout:
        assert time.monotonic() < deadline, queue
        time.sleep(0.5)


def run_chain(cluster: Cluster, settings: dict[str, str], timeout: float) -> None:
    """chain.sh to the report of all its sets; a repeated call has nothing to do."""
    Path(settings["SHARDS"]).mkdir(exist_ok=True)
    runs = Path(settings["RUNS"])
    chain(cluster, settings)
    wait_for_empty_queue(cluster, timeout)

    status = chain(cluster, settings, "status")
    logs = "\n".join(log.read_text() for log in sorted((runs / "logs").iterdir()))
    assert (runs / "report" / "report.md").exists(), f"{status}\n{logs}"
    assert [step for step, _ in losses(runs / "pretrain")] == list(range(1, 13))
    report = (runs / "report" / "report.md").read_text()
    for name in settings["SETS"].split():
        results = json.loads((runs / f"evaluation-{name}" / "results.json").read_text())
        score = results["systems"]["lead"]["rouge1"]["value"]
        assert score > 0
        assert f"{score:.2f}" in report  # in percent
        assert len(list((runs / f"finetune-{name}" / "tensorboard").iterdir())) == 1
    assert "RUNNING" not in status and "FAILED" not in status
    assert "0 jobs submitted" in chain(cluster, settings)


def small_chain(site: Site, name: str, **more: str) -> dict[str, str]:
    """Settings of a chain whose jobs take one core of each node."""
    few = {
        "SHARDS": str(site.folder / f"{name}-shards"),
        "PREPROCESS_JOBS": "2",
        "PREPROCESS_FLAGS": "--ntasks=2",
        "PRETRAIN_FLAGS": ONE_CORE,
        "FINETUNE_NODES": "2",
        "FINETUNE_FLAGS": ONE_CORE,
        "EVALUATE_FLAGS": ONE_CORE,
        **dict.fromkeys(("EXTRAPOLATE", "SYSTEMS_ARGUMENTS", "KERNELS_ARGUMENTS"), " "),
    }
    return site.settings(name, **(few | more))


def run_whole_chain(cluster: Cluster, site: Site) -> None:
    """The chain of the site's two sets, from its plan."""
    settings = small_chain(site, "chain")
    Path(settings["SHARDS"]).mkdir()
    assert "processors on nodes n[1-4]" in chain(cluster, settings, "--dry_run")
    assert not Path(settings["RUNS"]).exists()
    run_chain(cluster, settings, timeout=900)
