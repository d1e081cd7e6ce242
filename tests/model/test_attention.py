"""Attention against a plain softmax in float64; rotary positions; compilation."""

import cmath

import pytest
import torch
from locost_golden import error, random_model
from torch.utils.checkpoint import checkpoint

from pipeline.model import LocostConfig
from pipeline.model.attention import attend, rotate, rotation

CPU = torch.device("cpu")
DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
IDS = torch.randint(2, 40, (3, 13), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(13) < torch.tensor([[13], [4], [9]])).long()
LABELS = torch.randint(2, 40, (3, 7), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention_is_unscaled_softmax(dtype, tolerance, padded):
    """Results and gradients; 12 heads of 64 over 300 positions."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 12, 9, 64), (2, 12, 300, 64), (2, 12, 300, 64), (2, 12, 9, 64))
    q, k, v, direction = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    q = q / 4
    mask = (torch.arange(300) < torch.tensor([[300], [17]]))[:, None, None] if padded else None

    def results(function, *inputs):
        leaves = [x.detach().requires_grad_() for x in inputs]
        context = function(*leaves)
        return context, *torch.autograd.grad(context, leaves, direction.to(context.dtype))

    def plain(queries, keys, values):
        weights = (queries @ keys.transpose(-1, -2)).exp()
        weights = weights if mask is None else weights * mask
        return (weights / weights.sum(-1, keepdim=True)) @ values

    ours = results(lambda *qkv: attend(*qkv, mask), q, k, v)
    exact = results(plain, q.double(), k.double(), v.double())
    for one, other in zip(ours, exact, strict=True):
        assert error(one, other) < tolerance


def test_sdpa_drops_attention_weights():
    """Of the sum of equal weights over ones, a share of about 1 - p, divided by 1 - p."""
    ones = torch.ones(1, 1, 1000, 1)
    sums = attend(torch.zeros(1, 1, 1000, 1), ones, ones, dropout=0.5)
    assert sums.std() > 0.01 and abs(sums.mean() - 1) < 0.01
    model = random_model(dropout=0.5)
    attention = model.decoder.blocks[0].cross_attention
    assert attention.drop == 0 and attention.train().drop == 0.5


def test_rotation_is_multiplication_by_unit_complex_numbers():
    config = LocostConfig(positions="rotary", head_dim=8, rotary_base=100.0)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    pairs = torch.view_as_complex(x.clone().unflatten(-1, (4, 2)))
    for t in range(5):
        for i in range(4):
            pairs[:, :, t, i] *= cmath.exp(1j * t / 100 ** (i / 4))
    ours = rotate(x, rotation(config, 5, torch.float64, CPU))
    assert error(ours, torch.view_as_real(pairs).flatten(-2)) < 1e-14


def test_rotated_scores_depend_on_the_distance_alone():
    config = LocostConfig(positions="rotary", head_dim=8)
    angles = rotation(config, 60, torch.float64, CPU)
    q, k = (torch.randn(1, 10, 8, dtype=torch.float64) for _ in range(2))
    here, there = (
        rotate(q, angles[start : start + 10]) @ rotate(k, angles[start : start + 10]).mT
        for start in (0, 47)
    )
    assert error(here, there) < 1e-12
    assert error(here, q @ k.mT) > 0.1


def test_rotary_models_have_no_bias_and_see_the_order():
    model = random_model(positions="rotary").double()
    assert not [
        name for name, _ in model.named_parameters() if "bias" in name and "ssm" not in name
    ]
    states = model.encode(IDS, MASK)
    targets = torch.randn(3, 6, 16, dtype=torch.float64)
    swapped = targets[:, [1, 0, 2, 3, 4, 5]]
    last, other = (model.decoder(x, states, MASK)[:, -1] for x in (targets, swapped))
    assert error(last, other) > 1e-6


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_recomputed_blocks_have_the_same_gradients(positions):
    """A block under gradient (activation) checkpointing."""
    model = random_model(positions=positions, dropout=0.1).double().train()
    states = torch.randn(3, 13, 16, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(3, 6, 16, dtype=torch.float64)
    gradients = []
    for block in model.decoder.blocks:
        plain = block.forward
        recomputed = lambda *x, plain=plain: checkpoint(plain, *x, use_reentrant=False)  # noqa: E731
        for forward in (plain, recomputed):
            block.forward = forward
            torch.manual_seed(5)
            loss = model.decoder(targets, states, MASK).square().sum()
            gradients.append(torch.autograd.grad(loss, [states, *block.parameters()]))
        block.forward = plain
    for kept, again in zip(gradients[::2], gradients[1::2], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(kept, again, strict=True))


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_blocks_compile_whole_and_once(positions):
    """Without a break in the graph; other targets and sources of the same lengths add none."""
    model = random_model(positions=positions)
    states, targets = torch.randn(3, 13, 16), torch.randn(3, 6, 16)
    expected = model.decoder(targets, states, MASK)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    for block in model.decoder.blocks:
        block.compile(backend=count, fullgraph=True)
    for _ in range(3):
        assert error(model.decoder(targets, states, MASK), expected) < 1e-6
    torch.compiler.reset()
    assert len(graphs) <= len(model.decoder.blocks)
