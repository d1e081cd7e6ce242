"""The figures of docs/learning.md are those of the recorded runs of the demo."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def interval(found: dict[str, float], sign: str = "") -> str:
    value, low, high = (f"{found[name]:{sign}.2f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def test_the_table_of_three_seeds_is_what_was_recorded():
    page = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines()}
    runs = json.loads((ROOT / "benchmarks" / "cpu" / "demo" / "seeds.json").read_text())
    assert list(runs) == ["0", "1", "2"]
    expected = {
        "pre-trained": [interval(run["mean_rouge"]["model"]) for run in runs.values()],
        "lead: the name": [interval(run["mean_rouge"]["lead"]) for run in runs.values()],
        "permuted": [interval(run["mean_rouge"]["permuted"]) for run in runs.values()],
        "pre-trained minus the name": [
            interval(run["pretrained_minus"]["lead"], "+") for run in runs.values()
        ],
        "pre-trained minus permuted": [
            interval(run["pretrained_minus"]["permuted"], "+") for run in runs.values()
        ],
    }
    for name, cells in expected.items():
        assert rows[name] == f"| {name} | {' | '.join(cells)} |"
