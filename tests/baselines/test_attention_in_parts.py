"""Attention in parts against a plain softmax of the whole matrix, in float64."""

import pytest
import torch

from pipeline.baselines import attention_patterns
from pipeline.baselines.attention_in_parts import attend_in_parts
from pipeline.baselines.attention_patterns import AllKeys, ListedBlocks

ROWS, HEADS, LENGTH, CHANNELS, SIZE = 2, 2, 12, 3, 4
REAL = torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]])
LISTED = torch.tensor([[[-1, 0, 1], [0, 1, 2], [1, 2, -1]], [[2, 0, 0], [0, 1, -1], [1, 2, 0]]])
"""By head: the lists differ, a block is listed twice, and one not at all."""


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def all_keys():
    table = random(HEADS, 2 * LENGTH - 1)
    distance = torch.arange(LENGTH) - torch.arange(LENGTH)[:, None]
    bias = table[:, distance + LENGTH - 1].expand(ROWS, -1, -1, -1)
    mask = REAL[:, None, None].expand(-1, -1, LENGTH, -1)
    return AllKeys(REAL), [table], bias.masked_fill(~mask, -torch.inf), None


def listed_blocks():
    """The first eight keys listed have one bias for all blocks, three more one by position."""
    shared, by_position = random(HEADS, SIZE, 8), random(ROWS, HEADS, LENGTH, 3)
    pattern = ListedBlocks(LISTED, REAL.unflatten(1, (-1, SIZE)), 8)
    chosen = (LISTED.clamp(min=0)[..., None] * SIZE + torch.arange(SIZE)).flatten(2)
    bias = torch.zeros(ROWS, HEADS, LENGTH, 12, dtype=torch.float64)
    bias[..., :8] = shared.repeat(1, 3, 1)
    bias[..., 8:11] = by_position
    absent = (LISTED < 0).repeat_interleave(SIZE, -1)[None]
    hidden = (absent | ~REAL[:, chosen]).repeat_interleave(SIZE, 2)
    chosen = chosen.repeat_interleave(SIZE, 1)
    return pattern, [shared, by_position], bias.masked_fill(hidden, -torch.inf), chosen


@pytest.fixture(params=[2 * HEADS * SIZE * 12, 2 * HEADS * LENGTH * 12, 1])
def small_parts(monkeypatch, request):
    """Some blocks of a row; both rows at once; a block or a query alone."""
    monkeypatch.setattr(attention_patterns, "LARGEST_PART", {"cpu": request.param})


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("pattern", [all_keys, listed_blocks])
def test_results_and_gradients_are_those_of_the_whole_matrix(pattern):
    torch.manual_seed(0)
    inputs = [random(ROWS, HEADS, LENGTH, CHANNELS) for _ in range(3)]
    queries, keys, values = inputs
    chosen, learned, bias, numbers = pattern()
    if numbers is not None:  # (A, L, S): the keys that each query sees
        keys, values = (x[:, torch.arange(HEADS)[:, None, None], numbers] for x in (keys, values))
    else:
        keys, values = (x[:, :, None] for x in (keys, values))
    weights = ((queries[..., None, :] * keys).sum(-1) + bias).softmax(-1)
    expected = (weights[..., None] * values).sum(-2)
    found = attend_in_parts(chosen, *inputs, *learned)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    direction = torch.randn_like(found)
    leaves = [*inputs, *learned]
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, direction),
        torch.autograd.grad(expected, leaves, direction),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("pattern", [all_keys, listed_blocks])
def test_gradients_with_dropout_are_those_of_differences(pattern):
    torch.manual_seed(0)
    inputs = [random(ROWS, HEADS, LENGTH, CHANNELS) for _ in range(3)]
    chosen, learned, _, _ = pattern()

    def run(*tensors):
        torch.manual_seed(3)
        return attend_in_parts(chosen, *tensors, dropout=0.3)

    assert torch.autograd.gradcheck(run, (*inputs, *learned), fast_mode=True)


def test_dropped_weights_are_a_share_and_the_rest_is_scaled():
    """Zero queries: equal weights, so each output is the number of kept ones, scaled."""
    length = 400
    values = torch.ones(1, 1, length, 1)
    table = torch.zeros(1, 2 * length - 1)
    torch.manual_seed(0)
    zeros = torch.zeros(1, 1, length, 1)
    outputs = attend_in_parts(AllKeys(None), zeros, zeros, values, table, dropout=0.25)
    assert outputs.mean().item() == pytest.approx(1, abs=0.01)
    spread = (0.25 / 0.75 / length) ** 0.5
    assert outputs.std().item() == pytest.approx(spread, rel=0.15)
    kept = outputs * 0.75 * length
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-3)
    torch.manual_seed(0)
    again = attend_in_parts(AllKeys(None), zeros, zeros, values, table, dropout=0.25)
    assert torch.equal(outputs, again)


def test_bfloat16_is_as_near_as_its_own_rounding():
    torch.manual_seed(0)
    wide = [torch.randn(1, 2, 32, 16) for _ in range(3)]
    table, direction = torch.randn(2, 63), torch.randn(1, 2, 32, 16)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        leaves = [*(x.to(dtype).requires_grad_() for x in wide), table.clone().requires_grad_()]
        found = attend_in_parts(AllKeys(None), *leaves)
        results.append([found, *torch.autograd.grad(found, leaves, direction.to(dtype))])
    assert results[1][0].dtype == torch.bfloat16 and results[1][-1].dtype == torch.float32
    for narrow, exact in zip(results[1], results[0], strict=True):
        assert (narrow - exact).abs().max() < 0.04 * exact.abs().max()
