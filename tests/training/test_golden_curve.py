"""Training learns what it learnt before, step by step."""

import pytest
from golden_curve import FIXTURE, ROOT, losses

# Rounding differs between processors and grows over the steps; a change of method is far larger.
TOLERANCE = 2e-3


@pytest.mark.slow
def test_the_debug_recipe_follows_its_golden_curve(tmp_path):
    golden = [float(line.split()[1]) for line in FIXTURE.read_text().splitlines()]
    assert len(golden) == 50
    assert golden[-1] < 0.8 * golden[0]
    curve = losses(ROOT, tmp_path)
    assert curve == pytest.approx(golden, rel=TOLERANCE)
