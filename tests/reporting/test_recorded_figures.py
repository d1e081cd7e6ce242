"""The tables of benchmarks/README.md are those of the recorded files that they name."""

import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def page() -> str:
    return (BENCHMARKS / "README.md").read_text(encoding="utf-8")


def recorded(name: str) -> dict[str, Any]:
    return json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))


def training(name: str, subject: str, length: int) -> dict[str, Any]:
    (row,) = (
        row for row in recorded(name)["rows"]
        if (row["subject"], row.get("mode"), row["length"]) == (subject, "training", length)
    )  # fmt: skip
    return row


def test_the_layer_and_its_references(page):
    ssm, long = (training("cpu/layer.json", "ssm", length) for length in (4096, 65536))
    feed = training("cpu/layer.json", "feed-forward", 4096)
    whole, rows = (
        training("cpu/references/layer.json", subject, 1024)
        for subject in ("materialised", "row by row")
    )
    for line in (
        f"| state-space layer with projections, B 1 | 4,096 | {ssm['cpu_s']:.2f} "
        f"| {ssm['peak_gib']:.2f} |",
        f"| | 65,536 | {long['cpu_s']:.1f} | {long['peak_gib']:.2f} |",
        f"| gated feed-forward, B 4 | 4,096 | {feed['cpu_s']:.2f} | {feed['peak_gib']:.2f} |",
        f"| materialised reference | 1,024 | {whole['cpu_s']:.1f} | {whole['peak_gib']:.1f} |",
        f"| row-by-row reference | 1,024 | {rows['cpu_s']:.1f} | {rows['peak_gib']:.1f} |",
    ):
        assert f"{line}\n" in page
    growth = recorded("cpu/layer.json")["growth"]
    memory, trained, inferred = (
        growth[name]["measured"]
        for name in (
            "memory of the kernel", "time of the layer, training", "time of the layer, inference",
        )
    )  # fmt: skip
    words = " ".join(page.split())
    assert f"costs {ssm['cpu_s'] / feed['cpu_s']:.2f} of the feed-forward at B 4" in words
    assert f"memory grows as L^{memory:.2f}" in words
    assert f"time as L^{trained:.2f} (training) and L^{inferred:.2f} (inference)" in words


def test_launches(page):
    record = recorded("launches/h100.json")
    names = {450: "8 x 450 / 130 tokens", 4096: "{} x 4,096 / 512"}
    for step in record["steps"]:
        total = step["total"]
        if step["step"] != "training":
            continue
        name = names[step["source"]].format(step["batch"])
        line = (
            f"| training step, {name} | {total['launches']:,} | {total['bytes'] / 1e9:.0f} "
            f"| {(total['flops'] + total['flops32']) / 1e12:.1f} | {total['card_ms']:.0f} "
            f"| {total['host_ms']:.0f} |\n"
        )
        assert line in page
    for step, name in zip(record["graph_steps"], ("greedy", "4 beams"), strict=True):
        line = f"| outside the replay, {name} | {step['outside']['launches']} | "
        assert line in page
        inside = step["inside"]["launches"]
        assert f"| by a CUDA graph, replayed as one launch | {inside} | " in page


def test_processes_that_share_a_document(page):
    def cells(name: str) -> dict[tuple[int, int], str]:
        return {
            (row["length"], row["processes"]): f"{max(row['peak']) / 2**20:,.0f} | "
            f"{row['expected_peak'] / 2**20:,.0f} | {max(row['sent']) / 1e6:.3f}"
            for row in recorded(name)["rows"]
        }

    kept = cells("sequence/sequence.json")
    recomputed = cells("sequence/recomputed/sequence.json")
    assert kept.keys() == recomputed.keys() and len(kept) == 9
    for (length, processes), figures in kept.items():
        again = recomputed[length, processes]
        assert f"| {length:,} | {processes} | {figures} | {again} |\n" in page
