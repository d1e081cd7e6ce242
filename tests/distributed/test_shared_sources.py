"""A source shared by 2 and by 4 real processes gives the loss and gradients of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sequence_matrix import CASES, CONFIG, PRECISIONS, ROUNDED, SOURCES

pytestmark = pytest.mark.slow
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory) -> dict[str, list[dict]]:
    output = tmp_path_factory.mktemp("matrix") / "found.json"
    script = Path(__file__).with_name("sequence_matrix.py")
    command = [sys.executable, str(script), str(output)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(output.read_text())


def test_gradients_equal_those_of_one_process(matrix):
    """bfloat16 rounds a process's part as coarsely as the whole: up to twice as wrong."""
    found = matrix["exactness"]
    assert len(found) == len(CASES) + 2 * len(ROUNDED)
    assert {result["precision"] for result in found} == {*PRECISIONS}
    worst: dict[str, float] = {}
    for result in found:
        precision, errors = result["precision"], result["shared"]
        worst[precision] = max(worst.get(precision, 0.0), *errors)
        assert max(errors) < TOLERANCE.get(precision, 2 * result["alone"]), result
    print(f"worst relative errors: {worst}")


def test_compiled_blocks_are_exact_too(matrix):
    assert all(result["error"] < TOLERANCE["float32"] for result in matrix["compiled"])
    assert len(matrix["compiled"]) == 2


def test_dropout_is_reproducible_and_a_groups_loss_is_one(matrix):
    plain, recomputed = (result["runs_by_rank"] for result in matrix["dropout"])
    assert plain == recomputed  # the same masks again in backward
    for first, again, other in plain:
        assert first == again != other
    losses = [runs[0][0] for runs in plain]
    assert losses[0] == losses[1] != losses[2] == losses[3]  # two groups of two


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_bytes_sent_are_those_of_the_formula(matrix, size, recompute):
    """Two exchanges of a layer's keys, each there and back; two sums and the log-sum-exp of a
    cross-attention; float32. Recomputation repeats the forward ones."""
    length, real = SOURCES["odd"]
    rows, targets, inner = len(real), 6, CONFIG.num_heads * CONFIG.head_dim
    others = size - 1
    keys = 4 * rows * CONFIG.d_model * -(-length // size)
    context, lse = 4 * rows * targets * inner, 4 * rows * targets * CONFIG.num_heads
    forward = CONFIG.encoder_layers * 2 * keys * others // size + CONFIG.decoder_layers * (
        2 * context * others // size + lse * others
    )
    backward = CONFIG.encoder_layers * 2 * keys * others // size + CONFIG.decoder_layers * (
        2 * context * others // size
    )
    (found,) = [
        x["bytes"] for x in matrix["traffic"] if (x["size"], x["recompute"]) == (size, recompute)
    ]
    assert found == (1 + recompute) * forward + backward


def test_the_exchange_is_deepspeeds_bit_for_bit(matrix):
    assert [result["same"] for result in matrix["deepspeed"]] == [True, True]
