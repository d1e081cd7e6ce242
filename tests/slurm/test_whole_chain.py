"""The whole chain in Slurm, at a small size: `bash slurm/chain.sh`, from text to one report."""

import json

import pytest
from chain_run import run_chain, small_chain
from cluster import Cluster
from small_site import Site

# The paper's sets, in forms in which they are exported: the keys of document and summary, others.
EXPORTED = {
    "arxiv": ("article", "abstract", {}),
    "pubmed": ("article", "abstract", {}),
    "govreport": ("input", "output", {"id": "a"}),
    "summscreenfd": ("input", "output", {"id": "a"}),
    "booksum_chapter": ("text", "summary", {"chapter_id": "1"}),
    "booksum_book": ("text", "summary", {"bid": "1", "title": "A"}),
}


def test_the_whole_chain_from_text_to_report(scenarios):
    scenarios["chain"].result()


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
