"""The whole chain in Slurm, at a small size: `bash slurm/chain.sh`, from text to one report."""

import json
import re
from pathlib import Path

import pytest
from chain_run import run_chain, small_chain
from cluster import Cluster
from evaluation.chat_server import ChatServer
from paper_site import export_sets, paper_settings
from small_site import Site

from pipeline.scoring.blanc import PYTHON as LEGACY


def test_the_whole_chain_from_text_to_report(scenarios):
    scenarios["chain"].result()


@pytest.mark.soak
def test_the_whole_paper_with_every_table_and_figure(cluster: Cluster, site: Site):
    pytest.importorskip("bert_score", reason="bert-score: requirements-extras.txt")
    export_sets(site)
    with ChatServer() as judge:
        settings = small_chain(site, "paper", **paper_settings(site, LEGACY.exists(), judge.url))
        run_chain(cluster, settings, timeout=3600)
    check_page(Path(settings["RUNS"]) / "report")
    measured = json.loads((Path(settings["RUNS"]) / "systems" / "systems.json").read_text())
    fits = {row["mode"] for row in measured["rows"] if row["subject"] == "locost"
            and row["length"] == 16384 and "peak_gib" in row}  # fmt: skip
    assert fits == {"inference", "training"}  # which figure 1 draws beside the paper's systems
    if not LEGACY.exists():
        pytest.skip(f"all but BLANC and LSG, as there is no {LEGACY.parts[-3]}: `make legacy`")


def check_page(folder: Path) -> None:
    """Assert that each of the nine tables and seven figures has ours, none folded or left out."""
    page = (folder / "report.md").read_text()
    assert "**Missing" not in page
    tables, figures = page.split("## The paper's tables")[1].split("## The paper's figures")
    found = re.split(r"^### \d\. ", tables, flags=re.MULTILINE)[1:]
    assert len(found) == 9
    for table in found:
        assert re.search(r"^\|.*\| ours", table, re.MULTILINE), table
        assert "<summary>" not in table, table
    found = re.split(r"^### Figure \d\. ", figures.split("\n## ")[0], flags=re.MULTILINE)[1:]
    assert len(found) == 7
    for figure in found:
        pictures = re.findall(r"!\[.*\]\((.+)\)", figure)
        assert pictures and "Not given" not in figure, figure
        assert all((folder / picture).stat().st_size > 0 for picture in pictures)
