"""The whole road through Slurm, in small: `bash slurm/chain.sh`, from text to one report."""

import json
import subprocess
import time
from pathlib import Path

from cluster import Cluster
from small_site import ROOT, Site, losses

ONE_CORE = "--ntasks-per-node=1 --cpus-per-task=1 --time=10"


def chain(cluster: Cluster, settings: dict[str, str], *arguments: str) -> str:
    """What chain.sh prints; it must end well."""
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


def test_the_whole_chain_from_text_to_report(cluster: Cluster, site: Site):
    settings = site.settings(
        "chain",
        SHARDS=str(site.folder / "chain-shards"),
        PREPROCESS_JOBS="2",
        PRETRAIN_HOURS="0.05",
        PREPROCESS_FLAGS="--ntasks=2",
        PRETRAIN_FLAGS=f"--nodes=4 {ONE_CORE}",
        FINETUNE_FLAGS=f"--nodes=2 {ONE_CORE}",
        EVALUATE_FLAGS=f"--nodes=1 {ONE_CORE}",
    )
    Path(settings["SHARDS"]).mkdir()
    runs = Path(settings["RUNS"])
    assert "GPU-hours" in chain(cluster, settings, "--dry_run")
    assert not runs.exists()
    chain(cluster, settings)
    wait_for_empty_queue(cluster)

    status = chain(cluster, settings, "status")
    logs = "\n".join(log.read_text() for log in sorted((runs / "logs").iterdir()))
    assert (runs / "report" / "report.md").exists(), f"{status}\n{logs}"
    assert [step for step, _ in losses(runs / "pretrain")] == list(range(1, 13))
    report = (runs / "report" / "report.md").read_text()
    for name in ("docs", "notes"):
        results = json.loads((runs / f"evaluation-{name}" / "results.json").read_text())
        assert f"{100 * results['systems']['model']['rouge1']['value']:.2f}" in report
        assert len(list((runs / f"finetune-{name}" / "tensorboard").iterdir())) == 1
    assert "RUNNING" not in status and "FAILED" not in status
    again = chain(cluster, settings)
    assert "0 jobs submitted" in again
