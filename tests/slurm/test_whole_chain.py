"""The whole road through Slurm, in small: `bash slurm/chain.sh`, from text to one report."""

import json
import subprocess
import time
from pathlib import Path

import pytest
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


# The paper's sets, in forms in which they are exported: the keys of document and summary, others.
EXPORTED = {
    "arxiv": ("article", "abstract", {}),
    "pubmed": ("article", "abstract", {}),
    "govreport": ("input", "output", {"id": "a"}),
    "summscreenfd": ("input", "output", {"id": "a"}),
    "booksum_chapter": ("text", "summary", {"chapter_id": "1"}),
    "booksum_book": ("text", "summary", {"bid": "1", "title": "A"}),
}


def run_chain(cluster: Cluster, settings: dict[str, str], timeout: float) -> None:
    """chain.sh from its plan to the report of all its sets; run again it has nothing to do."""
    Path(settings["SHARDS"]).mkdir()
    runs = Path(settings["RUNS"])
    assert "GPU-hours" in chain(cluster, settings, "--dry_run")
    assert not runs.exists()
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
    return site.settings(
        name,
        SHARDS=str(site.folder / f"{name}-shards"),
        PREPROCESS_JOBS="2",
        PRETRAIN_HOURS="0.05",
        PREPROCESS_FLAGS="--ntasks=2",
        PRETRAIN_FLAGS=f"--nodes=4 {ONE_CORE}",
        FINETUNE_FLAGS=f"--nodes=2 {ONE_CORE}",
        EVALUATE_FLAGS=f"--nodes=1 {ONE_CORE}",
        **more,
    )


def test_the_whole_chain_from_text_to_report(cluster: Cluster, site: Site):
    run_chain(cluster, small_chain(site, "chain"), timeout=300)


@pytest.mark.soak
def test_the_whole_chain_of_the_papers_six_sets(cluster: Cluster, site: Site):
    own = {}
    for name, (document, summary, others) in EXPORTED.items():
        (site.folder / "sets" / name).mkdir()
        site.write_recipe(f"finetune_{name}", validation_rouge=True, max_new_tokens=8)
        own[f"{name.upper()}_EVALUATE_ARGUMENTS"] = "--max_new_tokens 8 --precision fp32"
        for split in ("train", "validation", "test"):
            pairs = (site.folder / "sets" / "docs" / f"{split}.jsonl").read_text().splitlines()
            records = (
                {document: pair["document"], summary: pair["summary"], **others}
                for pair in map(json.loads, pairs)
            )
            lines = (json.dumps(record) + "\n" for record in records)
            (site.folder / "sets" / name / f"{split}.jsonl").write_text("".join(lines))
    run_chain(cluster, small_chain(site, "six", SETS=" ".join(EXPORTED), **own), timeout=1200)
