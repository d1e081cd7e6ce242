"""The plot of a dataset."""

from collections import Counter

import matplotlib.image
import pytest

from preprocessing.dataset.plots import save_report
from preprocessing.dataset.statistics import Statistics, length_summary


@pytest.mark.parametrize("excluded", [{}, {"empty": 3, "not JSON": 1}])
def test_the_report_is_reproducible(tmp_path, excluded):
    statistics = Statistics(
        documents=9 + sum(excluded.values()),
        excluded=Counter(excluded),
        source_lengths=Counter({1: 1, 90: 5, 5000: 3}),
        target_lengths=Counter({1: 9}),
    )
    manifest = {
        "name": "x",
        "kind": "pretraining",
        "split": "train",
        "settings": {"source_length": 4096, "target_length": 0},
        "counts": statistics.counts(),
        "lengths": {
            "source": length_summary(statistics.source_lengths),
            "target": length_summary(statistics.target_lengths),
        },
    }
    for name in ("a.png", "b.png"):
        save_report(manifest, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    image = matplotlib.image.imread(tmp_path / "a.png")
    assert image.shape[:2] == (504, 1560)
    assert len({tuple(colour) for colour in image.reshape(-1, image.shape[2])[::7]}) > 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png"]
